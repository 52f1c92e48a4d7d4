"""Options of the commands that run many others: sweeps, measurements, checks."""
