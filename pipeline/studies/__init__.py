"""Studies of many runs: quickstart, measured models, ablations, GLUE sweeps."""
