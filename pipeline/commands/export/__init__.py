"""Options of the commands that exchange models with transformers."""
