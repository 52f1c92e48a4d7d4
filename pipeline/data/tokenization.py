"""The two ways to split text into the units a model predicts.

Both are lossless: summing the loss over all units of a split and dividing by its words gives a perplexity per
word that can be compared between them.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pipeline.errors import UserError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""What every fairseq dictionary starts with and its file leaves out."""

MODEL_FILE = "sentencepiece.bpe.model"
UNKNOWN_WORD = "\u2581<unk>"
"""WikiText's own `<unk>`, as one piece: a word of the text, not fairseq's symbol for no piece."""

LINES_AT_ONCE = 20_000
LONGEST_LINE = 1 << 24
"""Bytes; sentencepiece leaves longer lines out of its training (its default is 4,192)."""


class Tokenizer(Protocol):
    """What a preparation needs."""

    name: str
    dictionary: Path | None
    """The dictionary fairseq-preprocess shall use; None to let it build one from the train text."""

    def apply(self, texts: dict[str, Path]) -> dict[str, int]:
        """Rewrite each split's text as units with spaces between; returns the tokens of each split.

        A token is a unit or the end of a line, as fairseq counts.
        """


class WordTokenizer:
    """The text's own words, as WikiText is published."""

    name = "words"

    def __init__(self, vocabulary_from: Path | None = None):
        self.dictionary = vocabulary_from / "dict.txt" if vocabulary_from else None

    def apply(self, texts: dict[str, Path]) -> dict[str, int]:
        """The text is as it shall be: only counts."""
        return {split: sum(len(line.split()) + 1 for line in _lines(path)) for split, path in texts.items()}


class SentencePieceTokenizer:
    """BPE pieces learnt from the train text; rare characters are spelt in bytes."""

    name = "sentencepiece"

    def __init__(self, vocabulary: int, character_coverage: float, vocabulary_from: Path | None = None):
        self.vocabulary = vocabulary
        self.character_coverage = character_coverage
        self.vocabulary_from = vocabulary_from
        self.dictionary: Path | None = None

    def apply(self, texts: dict[str, Path]) -> dict[str, int]:
        """Learns (or copies) the pieces, encodes, leaves model and dictionary with the texts."""
        from sentencepiece import SentencePieceProcessor

        folder = texts["train"].parent
        model, self.dictionary = folder / MODEL_FILE, folder / "dict.txt"
        if self.vocabulary_from:
            shutil.copyfile(self.vocabulary_from / MODEL_FILE, model)
        else:
            print(f"Learning a vocabulary of {self.vocabulary:,} from the train text ...", flush=True)
            model.write_bytes(train_pieces(_lines(texts["train"]), self.vocabulary, self.character_coverage))
        processor = SentencePieceProcessor(model_proto=model.read_bytes())
        tokens, pieces = {}, Counter()
        for split, path in texts.items():
            tokens[split], used = _encode(processor, path)
            print(f"  {split}: {tokens[split]:,} tokens", flush=True)
            if split == "train":
                pieces = used
        if self.vocabulary_from:
            shutil.copyfile(self.vocabulary_from / "dict.txt", self.dictionary)
        else:
            _write_dictionary(processor, pieces, self.dictionary)
        return tokens


def train_pieces(lines: Iterable[str], vocabulary: int, character_coverage: float) -> bytes:
    """A sentencepiece model whose pieces fill a fairseq dictionary of `vocabulary` entries.

    BPE only counts, and the model names no file: the same text gives the same bytes. The text is not changed
    (no Unicode normalisation), so decoding returns it.
    """
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary - len(SPECIAL_SYMBOLS) + 1,  # it counts its own <unk>
            character_coverage=character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            user_defined_symbols=[UNKNOWN_WORD],
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=LONGEST_LINE,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(
            f"sentencepiece can make no vocabulary of {vocabulary:,} from this text "
            f"({str(error).strip().splitlines()[-1]}); give another --vocab-size"
        ) from None
    return model.getvalue()


def _encode(processor: SentencePieceProcessor, path: Path) -> tuple[int, Counter[str]]:
    """Replace a text by its pieces; returns its tokens and how often each piece occurs."""
    partial = path.with_suffix(".pieces")
    tokens, pieces = 0, Counter()
    lines = _lines(path)
    with partial.open("w", encoding="utf-8", newline="\n") as output:
        for number in count(1):
            batch = list(islice(lines, LINES_AT_ONCE))
            if not batch:
                break
            for encoded in processor.encode(batch, out_type=str):
                tokens += len(encoded) + 1
                pieces.update(encoded)
                output.write(" ".join(encoded) + "\n")
            if number % 10 == 0:
                print(f"  {path.stem}: {tokens:,} tokens so far", flush=True)
    os.replace(partial, path)
    return tokens, pieces


def _write_dictionary(processor: SentencePieceProcessor, counts: Counter[str], path: Path) -> None:
    """All pieces, the frequent ones first (an adaptive softmax relies on that), in fairseq's form.

    Pieces that the train text does not use (most of the bytes) are listed as well, so that new text has no
    unknown units.
    """
    pieces = [
        processor.id_to_piece(piece) for piece in range(len(processor)) if not processor.is_unknown(piece)
    ]
    pieces.sort(key=lambda piece: -counts[piece])
    with path.open("w", encoding="utf-8", newline="\n") as output:
        for piece in pieces:
            print(piece, counts[piece], file=output)


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\n")
