"""`python -m pipeline.data.preprocess`: fairseq-preprocess, its lines encoded in one step, to the same bytes.

fairseq's `Dictionary.encode_line` fills a tensor number by number, which takes most of the time.
"""

from collections.abc import Callable

import torch
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line
from fairseq_cli.preprocess import cli_main


def encode_line(
    self: Dictionary,
    line: str,
    line_tokenizer: Callable[[str], list[str]] = tokenize_line,
    add_if_not_exist: bool = True,
    consumer: Callable[[str, int], None] | None = None,
    append_eos: bool = True,
    reverse_order: bool = False,
) -> torch.Tensor:
    """What fairseq's method of this name gives: the numbers of a line's words, int32."""
    words = line_tokenizer(line)
    if reverse_order:
        words = words[::-1]
    if add_if_not_exist:
        numbers = [self.add_symbol(word) for word in words]
    else:
        numbers = [self.indices.get(word, self.unk_index) for word in words]
    if consumer is not None:
        for word, number in zip(words, numbers, strict=True):
            consumer(word, number)
    if append_eos:
        numbers.append(self.eos_index)
    return torch.tensor(numbers, dtype=torch.int32)


def main() -> None:
    Dictionary.encode_line = encode_line
    cli_main()


if __name__ == "__main__":
    main()
