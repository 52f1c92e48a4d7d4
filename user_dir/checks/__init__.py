"""Checks of settings, checkpoints and data: a user's mistake becomes one sentence."""
