"""A text for pre-training RoBERTa models: cut into documents, tokenised, binarised.

Documents are kept together, one empty line between them, as fairseq's masked_lm task wants them for
--sample-break-mode complete or complete_doc. Tokens are RoBERTa's (GPT-2's byte-level pairs and
fairseq's dictionary: 50,265 entries with the mask, which fairseq adds), or sentencepiece's.
"""

import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from lab.data import texts
from lab.data.published import OWN_TEXT
from lab.data.tokenization import (
    GPT2Encoder,
    SentencePieceEncoder,
    Tokenize,
    copy_vocabulary,
    find_gpt2_files,
    learn_pieces,
)
from lab.errors import UserError

TOKENIZERS = {encoder.name: encoder for encoder in (GPT2Encoder, SentencePieceEncoder)}
TITLE = re.compile(r"= (?!= ).*(?<! =) =")
"""The title of an article of WikiText's; its sections have more equals signs."""


def main(arguments: Namespace) -> None:
    """Prepare the corpus, or check the existing one."""
    clean = TOKENIZERS[arguments.tokenizer].clean

    def write(reader: texts.SplitReader, target: Path) -> int:
        return write_documents(reader, clean, target)

    def check(folder: Path, manifest: dict) -> None:
        if not all("documents" in split for split in manifest["splits"].values()):
            raise UserError(
                f"{arguments.dest} was prepared without marking its documents; name another --dest or move "
                "it away"
            )

    texts.prepare(arguments, find_tokenizer, write, check)


def find_tokenizer(arguments: Namespace) -> Tokenize:
    """The tokeniser asked for; GPT-2's files are found or fetched now."""
    if arguments.tokenizer == GPT2Encoder.name:
        files = find_gpt2_files(arguments.gpt2_bpe, arguments.dest.parent)
        return partial(copy_vocabulary, source=files, encoder=GPT2Encoder)
    return partial(learn_pieces, vocabulary=arguments.vocab_size)


def write_documents(reader: texts.SplitReader, clean: Callable[[str], str], target: Path) -> int:
    """Write a split with one empty line between documents and none inside; returns their number.

    fairseq's `--sample-break-mode complete_doc` starts a new sample where it meets an empty line.
    """
    cut = documents_by_empty_lines if reader.corpus == OWN_TEXT else documents_by_titles
    number = 0
    with target.open("w", encoding="utf-8", newline="\n") as output:
        for number, document in enumerate(cut(reader.lines()), 1):
            if number > 1:
                output.write("\n")
            output.writelines(f"{clean(line)}\n" for line in document)
    return number


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
