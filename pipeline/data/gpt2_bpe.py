"""RoBERTa's vocabulary: GPT-2's byte-level BPE, and fairseq's dictionary of its indices."""

import os
import shutil
from pathlib import Path

from pipeline.data.downloads import download
from pipeline.data.parallel_encoding import encode_all
from pipeline.data.preparation import worker_count
from pipeline.data.published import CORPORA, Corpus
from pipeline.data.text_encoding import GPT2Encoder
from pipeline.errors import UserError
from pipeline.files import sha256_of

CORPUS = CORPORA["gpt2-bpe"]
"""Its dictionary's 50,260 lines, four special symbols and the mask are RoBERTa's 50,265 entries."""

LINES_BETWEEN_REPORTS = 100_000


class GPT2Tokenizer:
    """RoBERTa's tokens (fairseq's multiprocessing_bpe_encoder and its dictionary)."""

    name = GPT2Encoder.name

    def __init__(self, files: Path):
        self.files = files
        self.dictionary: Path | None = None

    def apply(self, texts: dict[str, Path]) -> dict[str, int]:
        """Encodes, leaves the three files with the texts."""
        folder = texts["train"].parent
        for name in CORPUS.files:
            shutil.copyfile(self.files / name, folder / name)
        self.dictionary = folder / "dict.txt"
        encoder = GPT2Encoder(folder)
        return {split: _encode(encoder, path) for split, path in texts.items()}


def find_files(folder: Path | None, beside: Path, corpus: Corpus = CORPUS) -> Path:
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


def _encode(encoder: GPT2Encoder, path: Path) -> int:
    """Replace a text by its tokens; returns their number, including line ends."""
    partial = path.with_suffix(".tokens")
    workers = worker_count(path.stat().st_size)
    print(f"Encoding {path.stem}, {workers} process(es) ...", flush=True)
    tokens = 0
    with path.open(encoding="utf-8", newline="\n") as lines, partial.open("w", encoding="utf-8") as output:
        for number, encoded in enumerate(encode_all(encoder, lines, workers), 1):
            tokens += encoded.count(" ") + bool(encoded) + 1
            output.write(encoded + "\n")
            if number % LINES_BETWEEN_REPORTS == 0:
                print(f"  {path.stem}: {number:,} lines, {tokens:,} tokens so far", flush=True)
    os.replace(partial, path)
    return tokens
