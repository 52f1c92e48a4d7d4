"""Commands above runs and studies: quickstart, GLUE, averages of checkpoints, costs, committed results."""
