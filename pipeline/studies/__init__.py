"""What runs many of the others: quickstart, measured models, ablations, GLUE sweeps."""
