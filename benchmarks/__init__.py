"""Measurements of speed and memory; every benchmark is a script of its own, with `--help`."""
