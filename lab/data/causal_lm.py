"""A text for language models, WikiText or your own: found or downloaded, checked, tokenised, binarised."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from lab.data import texts
from lab.data.prepared import PIECES, WORDS, read_manifest
from lab.data.published import TEXTS
from lab.data.tokenization import (
    SentencePieceEncoder,
    Tokenize,
    copy_vocabulary,
    count_words,
    learn_pieces,
    tokenizer_fingerprint,
)
from lab.errors import UserError

TOKENIZERS = {WORDS: None, PIECES: SentencePieceEncoder}
"""Encoders by the name of the tokeniser; words need none."""


def main(arguments: Namespace) -> None:
    """Prepare the corpus, or check the existing one."""

    def check(folder: Path, manifest: dict) -> None:
        check_words(arguments, manifest)
        check_vocabulary(arguments, folder)

    texts.prepare(arguments, find_tokenizer, write_lines, check)


def check_words(arguments: Namespace, manifest: dict) -> None:
    """UserError if WikiText's published words do not make the expected dictionary."""
    if arguments.tokenizer != WORDS or not manifest["verified"]:
        return
    expected = TEXTS[arguments.corpus].entry["words_dictionary"]
    if manifest["vocabulary"] != expected:
        raise UserError(
            f"the dictionary has {manifest['vocabulary']:,} words instead of the {expected:,} that "
            f"models of {arguments.corpus} have; check the installed fairseq"
        )


def check_vocabulary(arguments: Namespace, folder: Path) -> None:
    """UserError if `folder`, which is or becomes --dest, has another vocabulary than --vocabulary-from."""
    source = arguments.vocabulary_from
    if source and tokenizer_fingerprint(source) != tokenizer_fingerprint(folder):
        raise UserError(
            f"{arguments.dest} was not prepared with the vocabulary of {source}; name another --dest "
            "or move it away"
        )


def write_lines(reader: texts.SplitReader, target: Path) -> None:
    """Write a split with single spaces between words."""
    with target.open("w", encoding="utf-8") as output:
        output.writelines(" ".join(line.split()) + "\n" for line in reader.lines())


def find_tokenizer(arguments: Namespace) -> Tokenize:
    """The tokeniser asked for, or the one of the folder given with --vocabulary-from."""
    folder = arguments.vocabulary_from
    if folder:
        name = (read_manifest(folder) or {}).get("tokenizer")
        if name is None:  # nothing, or data of another kind, such as images
            raise UserError(f"--vocabulary-from: {folder} holds no prepared corpus")
        if name not in TOKENIZERS:
            raise UserError(f"--vocabulary-from: {folder} has the tokens of {name}; give another folder")
        return partial(copy_vocabulary, source=folder, encoder=TOKENIZERS[name])
    if arguments.tokenizer == WORDS:
        return count_words
    return partial(learn_pieces, vocabulary=arguments.vocab_size)
