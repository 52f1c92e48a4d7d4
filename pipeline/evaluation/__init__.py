"""Trained models on held-out data."""
