"""Measurements of speed and memory; every benchmark is its own script with `--help`."""
