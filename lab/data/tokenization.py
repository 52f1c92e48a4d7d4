"""Text to the units a model predicts, and back: words, pieces learnt from it, GPT-2's byte pairs.

A tokeniser makes a corpus and leaves its own files in the folder; an encoder cuts new text the same way, for
GLUE and for prediction. All are lossless: summing the loss over all units of a split and dividing by its
words gives a perplexity per word that can be compared between them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tiktoken import Encoding

from lab.children import worker_pool
from lab.data.prepared import (
    BYTE_PAIR_FILES,
    BYTE_PAIRS,
    DICTIONARY,
    PIECE_FILES,
    PIECES,
    VOCABULARY_FILES,
    WORDS,
)
from lab.data.published import CORPORA, Corpus, download
from lab.errors import UserError
from lab.files import sha256_of
from lab.provenance import usable_cores

SPECIAL_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")
"""What every fairseq dictionary starts with and its file leaves out."""

RESERVED = frozenset(SPECIAL_SYMBOLS) - {"<unk>"}
"""What a text of words must not hold; its own `<unk>` means what fairseq's means."""

UNKNOWN_WORD = "\u2581<unk>"
"""WikiText's own `<unk>`, as one piece: a word of the text, not fairseq's symbol for unknown pieces."""

WORDS_MULTIPLE = 8
"""fairseq pads a dictionary of words to a multiple of this size."""

CHARACTER_COVERAGE = 0.9999
"""Share of the characters that get their own piece; in WikiText-2 the commonest 129 of 281."""

TEXTS_AT_ONCE = 1_000
BATCHES_AT_ONCE = 8
"""For each process: the batches read ahead before the first is waited for."""

LINES_BETWEEN_REPORTS = 100_000
BYTES_PER_WORKER = 4_000_000
MOST_WORKERS = 16
LONGEST_LINE = 1 << 24
"""Bytes; sentencepiece leaves longer lines out of its training (its default is 4,192)."""


GPT2_BPE = CORPORA["gpt2-bpe"]
"""Its dictionary's 50,260 lines, four special symbols and the mask are RoBERTa's 50,265 entries."""


class TextEncoder:
    """A complete tokeniser: it has tokens for any text."""

    name: str
    """As `tokenizer` in preparation.json."""

    files: tuple[str, ...]
    """Its files in a prepared folder."""

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
        """The text that was encoded, after `clean`."""
        raise NotImplementedError


GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""The pieces across which GPT-2 joins no pairs (Radford et al. 2019, the authors' code)."""


def gpt2_ranks(encoder: Path, pairs: Path) -> dict[bytes, int]:
    """Map the bytes of each token to its rank, read from GPT-2's two files.

    The files write a byte that is not a printable character as one of the characters from 256 on. Raises
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

    name, files = BYTE_PAIRS, BYTE_PAIR_FILES

    def __init__(self, folder: Path) -> None:
        ranks = gpt2_ranks(*(folder / name for name in self.files))
        self.pairs = Encoding("gpt2", pat_str=GPT2_WORDS, mergeable_ranks=ranks, special_tokens={})

    @staticmethod
    def clean(text: str) -> str:
        """Strip a line as fairseq's multiprocessing_bpe_encoder does: white space inside is kept."""
        return text.strip()

    def encode(self, text: str) -> str:
        """The tokens, separated by spaces."""
        return " ".join(map(str, self.pairs.encode_ordinary(self.clean(text))))

    def decode(self, tokens: str) -> str:
        """The text that was encoded, after `clean`."""
        return self.pairs.decode([int(token) for token in tokens.split()])


class SentencePieceEncoder(TextEncoder):
    """The pieces learnt from a train split."""

    name, files = PIECES, PIECE_FILES

    def __init__(self, folder: Path) -> None:
        self.processor = SentencePieceProcessor(model_proto=(folder / self.files[0]).read_bytes())

    @staticmethod
    def clean(text: str) -> str:
        """Any white space is one space: a piece never holds any other."""
        return " ".join(text.split())

    def encode(self, text: str) -> str:
        """The tokens, separated by spaces."""
        return " ".join(self.processor.encode(self.clean(text), out_type=str))

    def decode(self, tokens: str) -> str:
        """The text that was encoded, after `clean`."""
        return self.processor.decode_pieces(tokens.split())


def worker_count(size: int) -> int:
    """Processes worth starting for a text of `size` bytes."""
    return max(1, min(usable_cores(), size // BYTES_PER_WORKER, MOST_WORKERS))


def encode_all(encoder: TextEncoder, texts: Iterable[str], workers: int) -> Iterator[str]:
    """The tokens of each text in the texts' order, the same for any number of processes."""
    if workers == 1:
        yield from map(encoder.encode, texts)
        return
    texts = iter(texts)
    with worker_pool(workers, partial(_keep, encoder)) as pool:
        while batch := list(islice(texts, workers * BATCHES_AT_ONCE * TEXTS_AT_ONCE)):
            try:
                yield from pool.map(_encode_here, batch, chunksize=TEXTS_AT_ONCE)
            except BrokenProcessPool:
                raise UserError(
                    "an encoding process was killed, perhaps because memory ran out; free some and run "
                    "the same command again"
                ) from None


def _keep(encoder: TextEncoder) -> None:
    """Have `_encode_here` use the encoder in this process."""
    global _encoder
    _encoder = encoder


def _encode_here(text: str) -> str:
    return _encoder.encode(text)


def encode_sentences(encoder: TextEncoder, dictionary: Dictionary, sentences: Sequence[str]) -> torch.Tensor:
    """One row for a RoBERTa model, `<s> a </s>` or `<s> a </s> </s> b </s>`, of shape (length,).

    It is what fairseq's sentence_prediction task makes of the prepared files with
    `--init-token 0 --separator-token 2`.
    """
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


Tokenize = Callable[[dict[str, Path]], str]
"""Rewrites each split's text as units with spaces between, and leaves dictionary and model beside them.

Returns its name, as `tokenizer` in preparation.json.
"""


def copy_vocabulary(texts: dict[str, Path], source: Path, encoder: type[TextEncoder] | None) -> str:
    """Use the vocabulary of another folder: the tokens of its `encoder`, or words as they are."""
    folder = texts["train"].parent
    for name in (DICTIONARY, *(encoder.files if encoder else ())):
        shutil.copyfile(source / name, folder / name)
    if encoder is None:
        refuse_own_symbols(texts)
        return WORDS
    ready = encoder(folder)
    for path in texts.values():
        _encode(ready, path)
    return ready.name


def count_words(texts: dict[str, Path]) -> str:
    """Take the words of the train split; the text stays as it is; only the dictionary is written."""
    refuse_own_symbols(texts)
    counts: Counter[str] = Counter()
    for line in _lines(texts["train"]):
        counts.update(line.split())
    dictionary = Dictionary()
    for word, count in counts.items():
        dictionary.add_symbol(word, count)
    dictionary.finalize(padding_factor=WORDS_MULTIPLE)
    dictionary.save(str(texts["train"].with_name(DICTIONARY)))
    return WORDS


def refuse_own_symbols(texts: Mapping[str, Path]) -> None:
    """UserError if a word of a split is a symbol of fairseq's own, but for `<unk>`.

    A model gets no loss for `<pad>`, and takes `</s>` for the end of a line.
    """
    for split, path in texts.items():
        for number, line in enumerate(_lines(path), 1):
            if found := RESERVED.intersection(line.split()):
                raise UserError(
                    f"line {number} of the {split} split has the word {min(found)}, a symbol of fairseq's "
                    "own; take it out of the text, or give --tokenizer sentencepiece"
                )


def learn_pieces(
    texts: dict[str, Path], vocabulary: int, character_coverage: float = CHARACTER_COVERAGE
) -> str:
    """Learn BPE pieces from the train text, then encode; rare characters are spelt in bytes."""
    folder = texts["train"].parent
    print(f"Learning a vocabulary of {vocabulary:,} from the train text ...", flush=True)
    pieces = train_pieces(_lines(texts["train"]), vocabulary, character_coverage)
    (folder / SentencePieceEncoder.files[0]).write_bytes(pieces)
    encoder = SentencePieceEncoder(folder)
    counts: Counter[str] = Counter()
    for split, path in texts.items():
        _encode(encoder, path, counts if split == "train" else None)
    _write_dictionary(encoder, counts, folder / DICTIONARY)
    return encoder.name


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


def train_pieces(lines: Iterable[str], vocabulary: int, character_coverage: float) -> bytes:
    """A sentencepiece model whose pieces fill a fairseq dictionary of `vocabulary` entries.

    BPE only counts, and the model names no file: the same text gives the same bytes. The text is not changed
    (no Unicode normalisation), so decoding returns it.
    """
    model = io.BytesIO()
    own = len(SPECIAL_SYMBOLS) - 1  # that fairseq adds; sentencepiece counts its own <unk>
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocabulary - own,
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
            f"sentencepiece cannot make a vocabulary of {vocabulary:,} from this text; "
            f"{possible_size(str(error), own)}"
        ) from None
    return model.getvalue()


def possible_size(message: str, own: int) -> str:
    """Advice from sentencepiece's message; its bound excludes the `own` symbols that fairseq adds."""
    if bound := re.search(r"required_chars\D*\d+ vs (\d+)", message):
        return f"give --vocab-size {int(bound[1]) + own} or more"
    if bound := re.search(r"<= (\d+)", message):
        return f"give --vocab-size {int(bound[1]) + own} or less"
    return f"give another --vocab-size ({message.strip().splitlines()[-1]})"


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
