"""RoBERTa's vocabulary: GPT-2's byte-level BPE, and fairseq's dictionary of its indices."""

import os
import shutil
from pathlib import Path

from pipeline.data.downloads import download
from pipeline.data.parallel_encoding import encode_all
from pipeline.data.preparation import worker_count
from pipeline.data.text_encoding import GPT2Encoder
from pipeline.errors import UserError
from pipeline.files import sha256_of

URL = "https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe"
CHECKSUMS = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "dict.txt": "2c31c5b236661067fe8626775eb995ef5fe808ac87d2ad4a6ddbef68550f5cc6",
}
"""sha256. The dictionary's 50,260 lines, four special symbols and the mask are RoBERTa's 50,265 entries."""

OTHER_SOURCES = "give a folder with --gpt2-bpe, or take --tokenizer sentencepiece"
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
        for name in CHECKSUMS:
            shutil.copyfile(self.files / name, folder / name)
        self.dictionary = folder / "dict.txt"
        encoder = GPT2Encoder(folder)
        return {split: _encode(encoder, path) for split, path in texts.items()}


def find_files(folder: Path | None, beside: Path, url: str = URL) -> Path:
    """The folder with the three published files, which are downloaded to `gpt2_bpe` in `beside` if None."""
    source = folder or beside / "gpt2_bpe"
    for name, checksum in CHECKSUMS.items():
        path = source / name
        if not folder and not path.exists():
            download(f"{url}/{name}", path, OTHER_SOURCES)
        if not path.is_file():
            raise UserError(
                f"{source} (given with --gpt2-bpe) holds no {name}; it must hold {', '.join(CHECKSUMS)}"
            )
        found = sha256_of(path)
        if found != checksum:
            if not folder:
                path.unlink()
            removed = "" if folder else " (now removed)"
            raise UserError(
                f"{path}{removed} has the sha256 {found} instead of {checksum}; get the file of {URL}"
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
