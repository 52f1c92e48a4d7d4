"""The options of each command, read without torch and fairseq: `--help` and mistakes end at once."""
