"""Records of the cost benchmarks as tables and plots."""
