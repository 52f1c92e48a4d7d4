"""What only some studies need, a module for each; the key `hooks` of a study names it.

A module may have `tables(study, records)`, Markdown below the tables of the page; `DRAWS`, further pictures
by their title; and `data_flags(cell)`, flags of fairseq-train that follow from the cell's prepared data.
"""
