"""Options of the commands that evaluate, predict and sample."""
