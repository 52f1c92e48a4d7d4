"""The analyses behind scripts/lab.sh figures, one module per subcommand."""
