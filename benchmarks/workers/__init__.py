"""What the benchmarks start in processes of their own, and the models measured there."""
