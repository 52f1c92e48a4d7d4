"""Prepare a text of your own for language models: check, tokenise, binarise.

The folder of --from holds train.txt, valid.txt and test.txt in UTF-8, each plain or packed as .gz. Every line
becomes a row that ends with `</s>`; white space within a line becomes one space. By default the tokens are
sentencepiece's, learnt from train.txt: a character without a piece of its own is spelt in bytes, so that no
text has unknown tokens. docs/own_text.md shows what to do next.
"""

import argparse
from pathlib import Path

from lab.console import Parser
from lab.data import texts
from lab.data.preparation import add_dest
from lab.data.tokenization import SentencePieceEncoder
from lab.data.wikitext import check_vocabulary, find_tokenizer, parse_tokenizer, write_lines


def main() -> None:
    arguments = parse_arguments()
    texts.prepare(arguments, find_tokenizer, write_lines)
    check_vocabulary(arguments)


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/text.sh", __doc__)
    parser.add_argument(
        "--from", dest="source", type=Path, required=True, metavar="FOLDER", help="folder of the text"
    )
    add_dest(parser)
    parser.set_defaults(corpus=texts.OWN_TEXT, url=None, allow_unverified=False)
    return parse_tokenizer(parser, SentencePieceEncoder.name)
