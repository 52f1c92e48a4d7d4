"""The analyses behind scripts/analyse.sh, one module a subcommand."""
