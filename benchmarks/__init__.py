"""Measurements of speed and memory; every benchmark is its own script with `--help`."""

import importlib.util
import sys

if importlib.util.find_spec("torch") is None:
    sys.exit("error: this Python has no torch; run the benchmarks with .venv/bin/python")
