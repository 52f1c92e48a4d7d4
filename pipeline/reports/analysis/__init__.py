"""Figures of the analyses, drawn from their JSON files alone, and the document that shows them."""
