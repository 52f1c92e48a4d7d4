"""Pathfinder and Path-X drawn; those as published are read by lra/images.py."""
