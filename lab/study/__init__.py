"""Studies: experiments that a YAML declares, run cell by cell, with records, tables, verdicts, plots."""
