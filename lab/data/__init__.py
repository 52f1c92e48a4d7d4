"""Turns raw corpora into what fairseq reads."""
