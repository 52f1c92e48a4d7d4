"""Raw corpora to what fairseq reads."""
