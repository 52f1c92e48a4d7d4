"""Parts that several mechanisms share."""
