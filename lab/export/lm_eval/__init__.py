"""A task for lm-eval, given with --include_path; nothing here is imported by the other modules."""
