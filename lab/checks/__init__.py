"""System checks: a GPU's kernels and speed, faults that a run must survive."""
