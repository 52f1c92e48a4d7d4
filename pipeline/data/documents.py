"""Where documents begin in a text.

RoBERTa is trained on whole documents: fairseq's `--sample-break-mode complete_doc` starts a new
sample where it meets an empty line, so the prepared text has one between documents and none inside.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

TITLE = re.compile(r"= (?!= ).*(?<! =) =")
"""The title of an article of WikiText's; its sections have more equals signs."""


def documents_by_titles(lines: Iterable[str]) -> Iterator[list[str]]:
    """WikiText's articles without the empty lines around every heading.

    A title has an empty line before and after it. Other lines, mostly legends of tables
    (` = Goals ; A = `), look the same: 29 in WikiText-2's train split and 2 in its test split.
    """
    document: list[str] = []
    before = ""
    for line, after in pairwise(chain((line.strip() for line in lines), [""])):
        if TITLE.fullmatch(line) and not before and not after and document:
            yield document
            document = []
        if line:
            document.append(line)
        before = line
    if document:
        yield document


def documents_by_empty_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """The text between empty lines, however many."""
    document: list[str] = []
    for line in chain(lines, [""]):
        if line.strip():
            document.append(line)
        elif document:
            yield document
            document = []
