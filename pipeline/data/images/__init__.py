"""Image sets for --task pixels."""
