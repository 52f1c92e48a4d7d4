"""Commands that run a study and more: the quickstart, fine-tuning on GLUE, the committed results."""
