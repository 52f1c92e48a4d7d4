"""Pathfinder and Path-X: read as published, or drawn."""
