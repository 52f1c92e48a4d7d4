"""New text to the tokens of a prepared folder, and back.

The folder carries its tokeniser: pre-training, GLUE preparation and prediction cut text alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UserError
from pipeline.files import sha256_of

if TYPE_CHECKING:
    import torch
    from fairseq.data import Dictionary

DICTIONARY = "dict.txt"


class TextEncoder:
    """A complete tokeniser: it has tokens for any text."""

    name: str
    """As `tokenizer` in preparation.json."""

    files: tuple[str, ...]
    """What it is made of, in a prepared folder."""

    @staticmethod
    def from_folder(folder: Path) -> TextEncoder:
        """The encoder a prepared folder carries; UserError if there is none or it is damaged."""
        try:
            for encoder in (GPT2Encoder, SentencePieceEncoder):
                if all((folder / name).is_file() for name in encoder.files):
                    return encoder(folder)
            problem = "has no sub-word tokeniser; give a folder written by data-prep/roberta.sh"
        except (OSError, RuntimeError, ValueError) as error:
            problem = f"carries a damaged tokeniser ({error}); prepare it again"
        raise UserError(f"{folder} {problem}")

    @staticmethod
    def clean(text: str) -> str:
        """The text as it is encoded and as decoding gives it back."""
        raise NotImplementedError

    def encode(self, text: str) -> str:
        """The tokens, separated by spaces."""
        raise NotImplementedError

    def decode(self, tokens: str) -> str:
        """What `encode` was given, after `clean`."""
        raise NotImplementedError


GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The pieces across which GPT-2 joins no pairs (Radford et al. 2019, the authors' code)."""


def gpt2_ranks(encoder: Path, pairs: Path) -> dict[bytes, int]:
    """The bytes of each token to its number, which is also its rank, from GPT-2's two files.

    The files write a byte that is no printable character as one of the characters from 256 on. Raises
    ValueError if they do not belong together.
    """
    printable = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}
    words = [*byte_of, *("".join(line.split()) for line in pairs.read_text("utf-8").split("\n")[1:-1])]
    numbers = json.loads(encoder.read_text("utf-8"))
    if any(numbers.get(word) != rank for rank, word in enumerate(words)):
        raise ValueError(f"{encoder.name} and {pairs.name} do not belong together")
    return {bytes(byte_of[character] for character in word): rank for rank, word in enumerate(words)}


class GPT2Encoder(TextEncoder):
    """GPT-2's byte-level BPE by tiktoken; a token is the index of a pair (Radford et al. 2019)."""

    name = "gpt2"
    files = ("encoder.json", "vocab.bpe")

    def __init__(self, folder: Path) -> None:
        from tiktoken import Encoding

        ranks = gpt2_ranks(*(folder / name for name in self.files))
        self.pairs = Encoding("gpt2", pat_str=GPT2_WORDS, mergeable_ranks=ranks, special_tokens={})

    @staticmethod
    def clean(text: str) -> str:
        """As fairseq's multiprocessing_bpe_encoder does: white space inside is kept."""
        return text.strip()

    def encode(self, text: str) -> str:
        """The tokens, separated by spaces."""
        return " ".join(map(str, self.pairs.encode_ordinary(self.clean(text))))

    def decode(self, tokens: str) -> str:
        """What `encode` was given, after `clean`."""
        return self.pairs.decode([int(token) for token in tokens.split()])


class SentencePieceEncoder(TextEncoder):
    """The pieces that `tokenization.py` learnt from a train split."""

    name = "sentencepiece"
    files = ("sentencepiece.bpe.model",)

    def __init__(self, folder: Path) -> None:
        from sentencepiece import SentencePieceProcessor

        self.processor = SentencePieceProcessor(model_proto=(folder / self.files[0]).read_bytes())

    @staticmethod
    def clean(text: str) -> str:
        """Any white space is one space: a piece never holds any other."""
        return " ".join(text.split())

    def encode(self, text: str) -> str:
        """The tokens, separated by spaces."""
        return " ".join(self.processor.encode(self.clean(text), out_type=str))

    def decode(self, tokens: str) -> str:
        """What `encode` was given, after `clean`."""
        return self.processor.decode_pieces(tokens.split())


# What says how text becomes numbers, in a prepared folder and beside a checkpoint.
VOCABULARY_FILES = (DICTIONARY, *GPT2Encoder.files, *SentencePieceEncoder.files)


def encode_sentences(encoder: TextEncoder, dictionary: Dictionary, sentences: Sequence[str]) -> torch.Tensor:
    """One row for a RoBERTa model, `<s> a </s>` or `<s> a </s> </s> b </s>`, of shape (length,).

    It is what fairseq's sentence_prediction task makes of the prepared files with
    `--init-token 0 --separator-token 2`.
    """
    import torch

    parts = [torch.tensor([dictionary.bos()])]
    for number, sentence in enumerate(sentences):
        separator = [dictionary.eos()] if number else []
        tokens = dictionary.encode_line(encoder.encode(sentence), add_if_not_exist=False)
        parts += [torch.tensor(separator, dtype=torch.long), tokens.long()]
    return torch.cat(parts)


def tokenizer_fingerprint(folder: Path) -> str:
    """One sha256 of dictionary and tokeniser; equal for two folders whose tokens mean the same.

    Works for every prepared folder, words included (their dictionary is all there is).
    """
    total = hashlib.sha256()
    for name in VOCABULARY_FILES:
        path = folder / name
        if path.is_file():
            total.update(f"{name} {sha256_of(path)}\n".encode())
    return total.hexdigest()
