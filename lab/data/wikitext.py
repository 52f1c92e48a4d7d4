"""Prepare WikiText-2 or WikiText-103 for fairseq: find or download, check, tokenise, binarise."""

import argparse
from functools import partial
from pathlib import Path

from lab.console import Parser, count
from lab.data import texts
from lab.data.preparation import read_manifest
from lab.data.tokenization import (
    WORDS,
    SentencePieceEncoder,
    Tokenize,
    copy_vocabulary,
    count_words,
    learn_pieces,
    tokenizer_fingerprint,
)
from lab.errors import UserError

TOKENIZERS = {WORDS: None, SentencePieceEncoder.name: SentencePieceEncoder}
"""What cuts a text, by the name of the tokeniser; words are cut as they are."""

EPILOG = f"""
The source is --from (a folder, or a zip), else --url, else ${texts.URL_VARIABLE}, else
  wikitext-2     {texts.archive_url(texts.CORPORA["wikitext-2"])}
  wikitext-103   {texts.archive_url(texts.CORPORA["wikitext-103"])}
which the corpus' first author keeps; the published address at s3.amazonaws.com is dead. Wherever
the files come from, their word counts and checksums must be the published ones, or they are
refused. If a download is interrupted, the same command resumes it.
"""


def main() -> None:
    arguments = parse_arguments()

    def check(manifest: dict) -> None:
        expected = texts.CORPORA[arguments.corpus].entry["words_dictionary"]
        own_words = arguments.tokenizer == WORDS
        if own_words and manifest["verified"] and manifest["vocabulary"] != expected:
            raise UserError(
                f"the dictionary has {manifest['vocabulary']:,} words instead of the {expected:,} that "
                f"models of {arguments.corpus} have; check the installed fairseq"
            )

    texts.prepare(arguments, find_tokenizer, write_lines, check)
    check_vocabulary(arguments)


def check_vocabulary(arguments: argparse.Namespace) -> None:
    """UserError if --dest, which was there before, has another vocabulary than --vocabulary-from."""
    folder = arguments.vocabulary_from
    if folder and tokenizer_fingerprint(folder) != tokenizer_fingerprint(arguments.dest):
        raise UserError(
            f"{arguments.dest} was prepared with another vocabulary than that of {folder}; name another "
            "--dest or move it away"
        )


def write_lines(reader: texts.SplitReader, target: Path) -> None:
    """Write a split with single spaces between words."""
    with target.open("w", encoding="utf-8") as output:
        output.writelines(" ".join(line.split()) + "\n" for line in reader.lines())


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/wikitext.sh", __doc__, epilog=EPILOG)
    parser.add_argument("corpus", choices=[name for name in texts.CORPORA if not name.endswith("-raw")])
    texts.add_places(parser, "wiki.{train,valid,test}.tokens or {train,valid,test}.txt")
    return parse_tokenizer(parser, WORDS)


def parse_tokenizer(parser: Parser, usual: str) -> argparse.Namespace:
    """Read the command line, with the options of the tokeniser, which is the `usual` one by default."""
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help=f"the words of the train split, or pieces learnt from it (default: {usual})",
    )
    parser.add_argument(
        "--vocab-size",
        type=count,
        metavar="N",
        help=f"size of fairseq's dictionary with sentencepiece (default {texts.VOCABULARY}); "
        "words always take all words of the train split",
    )
    parser.add_argument(
        "--vocabulary-from",
        type=Path,
        metavar="FOLDER",
        help="use the vocabulary of this prepared folder, so that its models can read the result",
    )
    arguments = parser.parse_args()
    if arguments.vocabulary_from and (arguments.tokenizer or arguments.vocab_size):
        parser.error("--vocabulary-from settles the tokeniser: give no --tokenizer or --vocab-size")
    if not arguments.vocabulary_from:
        arguments.tokenizer = arguments.tokenizer or usual
    if arguments.vocab_size and arguments.tokenizer != SentencePieceEncoder.name:
        parser.error("--vocab-size goes with --tokenizer sentencepiece")
    arguments.vocab_size = arguments.vocab_size or texts.VOCABULARY
    return arguments


def find_tokenizer(arguments: argparse.Namespace) -> Tokenize:
    """The tokeniser asked for, or that of the folder whose vocabulary shall be used."""
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
