"""From a YAML to a finished run."""
