"""Lines encoded in one step: the numbers of fairseq, with every option."""

from itertools import product

import pytest
import torch
from fairseq.data import Dictionary

from pipeline.data.preprocess import encode_line

LINES = ["the cat saw the dog", " a bird  saw <unk> ", "", "dog"]


def known() -> Dictionary:
    dictionary = Dictionary()
    for word in ("the", "dog", "saw"):
        dictionary.add_symbol(word)
    return dictionary


@pytest.mark.parametrize(("add", "eos", "reverse"), list(product([False, True], repeat=3)))
def test_numbers_are_fairseqs(add, eos, reverse):
    theirs, ours = known(), known()
    options = {"add_if_not_exist": add, "append_eos": eos, "reverse_order": reverse}
    told: list[tuple[str, int]] = []

    def consumer(word: str, number: int) -> None:
        told.append((word, number))

    for line in LINES:
        expected = theirs.encode_line(line, consumer=consumer, **options)
        theirs_told = told.copy()
        told.clear()
        found = encode_line(ours, line, consumer=consumer, **options)
        assert found.dtype == expected.dtype == torch.int32 and torch.equal(found, expected)
        assert told == theirs_told
        told.clear()
    assert ours.symbols == theirs.symbols and ours.count == theirs.count
