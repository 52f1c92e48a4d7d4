"""The Python behind the commands of scripts/ and data-prep/."""
