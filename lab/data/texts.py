"""Text corpora in three splits, found or downloaded and checked, for wikitext.sh, text.sh and roberta.sh."""

import gzip
import hashlib
import os
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from lab.data.preparation import (
    Split,
    check_accepted,
    check_prepared_with,
    describe,
    finish,
    prepare_once,
    text_path,
)
from lab.data.prepared import PIECES, SPLITS
from lab.data.published import OWN_TEXT, TEXTS, URL_VARIABLE, address_mark, archive_url, fetch
from lab.data.tokenization import Tokenize
from lab.errors import UserError

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile)
READ_FIRST = ("valid", "test", "train")  # the small ones
NAMES = tuple(f"{stem}{end}" for stem in ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt") for end in ("", ".gz"))

Write = Callable[["SplitReader", Path], int | None]
"""Writes a split to a file; returns the number of its documents, None if they are not marked."""

Check = Callable[[Path, dict], None]
"""Raises UserError if a prepared folder, with its manifest, is not what was asked for."""


def prepare(
    arguments: Namespace,
    find_tokenizer: Callable[[Namespace], Tokenize],
    write: Write,
    check: Check,
) -> None:
    """Make --dest of the corpus that the `arguments` name, unless it is there, and print its contents.

    Raises UserError if it was made with another tokeniser or from another text, and if `check` raises it.
    """
    dest = arguments.dest
    settings = {"corpus": arguments.corpus}
    if arguments.tokenizer:  # else another folder's vocabulary settles it
        settings["tokenizer"] = arguments.tokenizer
    if arguments.tokenizer == PIECES:
        settings["vocabulary"] = arguments.vocab_size

    def build(folder: Path) -> dict:
        # A named source is looked for before a vocabulary is downloaded, the corpus downloaded after it.
        source = find_source(arguments) if arguments.source else None
        tokenize = find_tokenizer(arguments)
        source = source or find_source(arguments)
        splits, verified = read_splits(arguments, source, write, folder)
        manifest = finish(folder, arguments.corpus, splits, tokenize, verified, source)
        check(folder, manifest)
        return manifest

    manifest = prepare_once(dest, build)
    check_prepared_with(dest, manifest, settings)
    check(dest, manifest)
    accepted = arguments.allow_unverified or manifest["verified"] is not False
    check_accepted(dest, "unverified files", accepted, "--allow-unverified")
    check_source(manifest, arguments)
    print(f"{dest} is ready: {describe(manifest)}")


def read_splits(
    arguments: Namespace, source: Path, write: Write, folder: Path
) -> tuple[dict[str, Split], bool | None]:
    """Read, check and `write` the splits; also whether they are as published (None: nothing is)."""
    splits, complaints, own = {}, [], arguments.corpus == OWN_TEXT
    for name in READ_FIRST:
        reader = SplitReader(source, arguments.corpus, name)
        documents = write(reader, text_path(folder, name))
        text = reader.text(documents)
        complaint = "" if own else compare(arguments.corpus, name, text)
        if complaint and not arguments.allow_unverified:
            raise UserError(
                f"{source}: {complaint}; get the published file, or accept it with --allow-unverified"
            )
        found = [] if documents is None else [f"{documents:,} documents"]
        found += [f"{text.words:,} words", *([] if own else [complaint or "as published"])]
        print(f"{name}: {', '.join(found)}", flush=True)
        complaints += [complaint] if complaint else []
        splits[name] = text
    for one, other in combinations(SPLITS, 2):
        if splits[one].sha256 == splits[other].sha256:
            print(f"note: {one} and {other} hold the same text", flush=True)
    return {name: splits[name] for name in SPLITS}, None if own else not complaints


def check_source(manifest: dict, arguments: Namespace) -> None:
    """Raise UserError if the folder --dest was made from a different text than --from gives."""
    if not arguments.source:
        return
    made_from = manifest.get("source", {})
    if not arguments.source.exists() and os.path.abspath(arguments.source) == made_from.get("path"):
        return  # removed since
    source = find_source(arguments)
    for split in READ_FIRST:
        with open_split(source, arguments.corpus, split) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        made = manifest["splits"][split]["sha256"]
        if found != made:
            size = made_from.get("bytes", {}).get(split)
            raise UserError(
                f"{arguments.dest} was prepared from another {split} split than {source} has: from "
                f"{made_from.get('path', 'a text')} ({f'{size:,} bytes, ' if size is not None else ''}sha256 "
                f"{made[:12]}, not {found[:12]}); name another --dest or move it away"
            )


def find_source(arguments: Namespace) -> Path:
    """The folder or zip to read; a download lies beside --dest, for the next preparation too."""
    if arguments.source:
        if not arguments.source.exists():
            raise UserError(f"{arguments.source} (given with --from) does not exist")
        return arguments.source
    corpus = TEXTS[arguments.corpus]
    url = arguments.url or os.environ.get(URL_VARIABLE) or archive_url(corpus)
    stem = Path(urlsplit(url).path).stem or arguments.corpus
    archive = arguments.dest.with_name(f"{stem}-{address_mark(url)}.zip")
    fetch(url, archive, corpus.when_dead)
    if not zipfile.is_zipfile(archive):
        archive.unlink()
        raise UserError(
            f"{url} sent something that is not a zip file (now removed); give another address "
            "with --url or a folder with --from"
        )
    return archive


def compare(corpus: str, split: str, text: Split) -> str:
    """How a split differs from the published one, in words; empty if it does not."""
    expected = TEXTS[corpus].entry["splits"][split]
    if text.words != expected.get("words", text.words):
        return (
            f"the {split} split has {text.words:,} words instead of {expected['words']:,}, "
            f"it is not that of {corpus}"
        )
    algorithm = "sha256" if "sha256" in expected else "sha1"
    if getattr(text, algorithm) != expected[algorithm]:
        return (
            f"the {split} split has the {algorithm} {getattr(text, algorithm)} "
            f"instead of {expected[algorithm]}, it is not that of {corpus}"
        )
    return ""


class SplitReader:
    """Reads a split once, counting and hashing.

    Words are counted as WikiText does: the words between white space and one end per line.
    """

    def __init__(self, source: Path, corpus: str, split: str):
        self.source, self.corpus, self.split = source, corpus, split
        self.words = self.read = self.bytes = 0
        self.sha256, self.sha1 = hashlib.sha256(), hashlib.sha1(usedforsecurity=False)

    def lines(self) -> Iterator[str]:
        """The lines without their ends."""
        with open_split(self.source, self.corpus, self.split) as stream:
            try:
                for self.read, content in enumerate(stream, 1):
                    self.sha256.update(content)
                    self.sha1.update(content)
                    self.bytes += len(content)
                    line = content.decode("utf-8-sig" if self.read == 1 else "utf-8")
                    self.words += len(line.split()) + 1
                    yield line.rstrip("\n")
                    if self.read % 200_000 == 0:
                        print(f"  {self.split}: {self.words:,} words read", flush=True)
            except UnicodeDecodeError:
                raise UserError(
                    f"{self.source}: line {self.read} of the {self.split} split is not UTF-8 text"
                ) from None

    def text(self, documents: int | None = None) -> Split:
        """Counts and hashes of the split, once all lines are read."""
        if self.words == self.read:
            raise UserError(f"{self.source}: the {self.split} split is empty")
        return Split(self.words, self.bytes, self.sha256.hexdigest(), self.sha1.hexdigest(), documents)


@contextmanager
def open_split(source: Path, corpus: str, split: str) -> Iterator[BinaryIO]:
    """The split's bytes, unpacked; `source` or its subfolder named like the corpus is searched.

    Reading a damaged file raises UserError.
    """
    names = [name.format(split) for name in NAMES]
    with _in_folder(source, corpus, split, names) if source.is_dir() else _in_zip(source, names) as stream:
        try:
            yield stream
        except DAMAGE as error:
            raise UserError(f"{source} is damaged in its {split} split ({error}); get it again") from None


def _in_folder(source: Path, corpus: str, split: str, names: list[str]) -> BinaryIO:
    paths = [folder / name for folder in (source, source / corpus) for name in names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        of_corpus = "" if corpus == OWN_TEXT else f" of {corpus}"
        raise UserError(f"{source} holds no {split} split{of_corpus} (none of {', '.join(names)})")
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


@contextmanager
def _in_zip(source: Path, names: list[str]) -> Iterator[BinaryIO]:
    try:
        archive = zipfile.ZipFile(source)
    except zipfile.BadZipFile:
        raise UserError(f"{source} is neither a folder nor a zip file") from None
    with archive:
        member = next((item for item in archive.namelist() if Path(item).name in names), None)
        if member is None:
            raise UserError(f"{source} holds no {names[0]}")
        with archive.open(member) as stream:
            yield stream
