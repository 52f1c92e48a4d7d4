"""The ways to split text into the units a model predicts: words, pieces learnt from it, GPT-2's byte pairs.

All are lossless: summing the loss over all units of a split and dividing by its words gives a perplexity per
word that can be compared between them.
"""

from __future__ import annotations

import io
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from pipeline.data.processes import encode_all, worker_count
from pipeline.data.published import CORPORA, Corpus, download
from pipeline.data.text_encoding import DICTIONARY, GPT2Encoder, SentencePieceEncoder, TextEncoder
from pipeline.errors import UserError
from pipeline.files import sha256_of

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""What every fairseq dictionary starts with and its file leaves out."""

UNKNOWN_WORD = "\u2581<unk>"
"""WikiText's own `<unk>`, as one piece: a word of the text, not fairseq's symbol for no piece."""

WORDS_MULTIPLE = 8
"""fairseq pads a dictionary of words to a multiple of this size."""

LINES_BETWEEN_REPORTS = 100_000
LONGEST_LINE = 1 << 24
"""Bytes; sentencepiece leaves longer lines out of its training (its default is 4,192)."""


GPT2_BPE = CORPORA["gpt2-bpe"]
"""Its dictionary's 50,260 lines, four special symbols and the mask are RoBERTa's 50,265 entries."""


class Tokenizer(Protocol):
    """What a preparation needs."""

    name: str

    def apply(self, texts: dict[str, Path]) -> None:
        """Rewrite each split's text as units with spaces between; leave dictionary and model beside them."""


class WordTokenizer:
    """The text's own words, as WikiText is published; of the train split, or of a prepared folder."""

    name = "words"

    def __init__(self, vocabulary_from: Path | None = None):
        self.vocabulary_from = vocabulary_from

    def apply(self, texts: dict[str, Path]) -> None:
        """The text is as it shall be: only the dictionary is written."""
        target = texts["train"].with_name(DICTIONARY)
        if self.vocabulary_from:
            shutil.copyfile(self.vocabulary_from / DICTIONARY, target)
            return
        from fairseq.data import Dictionary

        counts: Counter[str] = Counter()
        for line in _lines(texts["train"]):
            counts.update(line.split())
        dictionary = Dictionary()
        for word, count in counts.items():
            dictionary.add_symbol(word, count)
        dictionary.finalize(padding_factor=WORDS_MULTIPLE)
        dictionary.save(str(target))


class SentencePieceTokenizer:
    """BPE pieces learnt from the train text, or of a prepared folder; rare characters are spelt in bytes."""

    name = SentencePieceEncoder.name

    def __init__(self, vocabulary: int, character_coverage: float, vocabulary_from: Path | None = None):
        self.vocabulary = vocabulary
        self.character_coverage = character_coverage
        self.vocabulary_from = vocabulary_from

    def apply(self, texts: dict[str, Path]) -> None:
        """Learn (or copy) the pieces, then encode."""
        folder = texts["train"].parent
        [model] = SentencePieceEncoder.files
        if self.vocabulary_from:
            _copy((model, DICTIONARY), self.vocabulary_from, folder)
        else:
            print(f"Learning a vocabulary of {self.vocabulary:,} from the train text ...", flush=True)
            pieces = train_pieces(_lines(texts["train"]), self.vocabulary, self.character_coverage)
            (folder / model).write_bytes(pieces)
        encoder = SentencePieceEncoder(folder)
        counts: Counter[str] = Counter()
        for split, path in texts.items():
            _encode(encoder, path, counts if split == "train" else None)
        if not self.vocabulary_from:
            _write_dictionary(encoder, counts, folder / DICTIONARY)


class GPT2Tokenizer:
    """RoBERTa's tokens (fairseq's multiprocessing_bpe_encoder and its dictionary), from its three files."""

    name = GPT2Encoder.name

    def __init__(self, files: Path):
        self.files = files

    def apply(self, texts: dict[str, Path]) -> None:
        """Copy the three files, then encode."""
        folder = texts["train"].parent
        _copy(GPT2_BPE.files, self.files, folder)
        encoder = GPT2Encoder(folder)
        for path in texts.values():
            _encode(encoder, path)


def find_gpt2_files(folder: Path | None, beside: Path, corpus: Corpus = GPT2_BPE) -> Path:
    """The folder with the three published files, which are downloaded to `gpt2_bpe` in `beside` if None."""
    source = folder or beside / "gpt2_bpe"
    for name, file in corpus.files.items():
        path = source / name
        if not folder and not path.exists():
            download(file.url, path, corpus.when_dead)
        if not path.is_file():
            raise UserError(
                f"{source} (given with --gpt2-bpe) holds no {name}; it must hold {', '.join(corpus.files)}"
            )
        found = sha256_of(path)
        if found != file.sha256:
            if not folder:
                path.unlink()
            removed = "" if folder else " (now removed)"
            raise UserError(
                f"{path}{removed} has the sha256 {found} instead of {file.sha256}; get {file.url}"
            )
    return source


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        shutil.copyfile(source / name, target / name)


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


def _encode(encoder: TextEncoder, path: Path, counts: Counter[str] | None = None) -> None:
    """Replace a text by its tokens, line by line; add to `counts` how often each occurs."""
    partial = path.with_suffix(".tokens")
    workers = worker_count(path.stat().st_size)
    print(f"Encoding {path.stem}, {workers} process(es) ...", flush=True)
    with partial.open("w", encoding="utf-8", newline="\n") as output:
        for number, tokens in enumerate(encode_all(encoder, _lines(path), workers), 1):
            output.write(tokens + "\n")
            if counts is not None:
                counts.update(tokens.split())
            if number % LINES_BETWEEN_REPORTS == 0:
                print(f"  {path.stem}: {number:,} lines so far", flush=True)
    os.replace(partial, path)


def _write_dictionary(encoder: SentencePieceEncoder, counts: Counter[str], path: Path) -> None:
    """All pieces, the frequent ones first (an adaptive softmax relies on that), in fairseq's form.

    Pieces that the train text does not use (most of the bytes) are listed as well, so that new text has no
    unknown units.
    """
    processor = encoder.processor
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
