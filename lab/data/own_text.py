"""A text of your own for language models: checked, tokenised, binarised."""

from argparse import Namespace

from lab.data import texts
from lab.data.wikitext import check_vocabulary, find_tokenizer, write_lines


def main(arguments: Namespace) -> None:
    """Prepare it, or check what is there."""
    texts.prepare(arguments, find_tokenizer, write_lines)
    check_vocabulary(arguments)
