"""Records to tables, plots and documents; no torch, no fairseq."""
