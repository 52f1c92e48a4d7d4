"""The analyses behind scripts/lab.sh figures, one module a subcommand."""
