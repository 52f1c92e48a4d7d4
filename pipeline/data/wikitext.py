"""Prepare WikiText-2 or WikiText-103 for fairseq: find or download, check, tokenise, binarise."""

import argparse
import gzip
import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from pipeline.console import Parser, count
from pipeline.data import published
from pipeline.data.downloads import download
from pipeline.data.preparation import (
    SPLITS,
    Split,
    Workplace,
    check_settings,
    describe,
    finish,
    prepare_once,
    read_manifest,
)
from pipeline.data.tokenization import SentencePieceTokenizer, Tokenizer, WordTokenizer
from pipeline.errors import UserError

CORPORA = {name: corpus for name, corpus in published.CORPORA.items() if "splits" in corpus.entry}
NAMES = tuple(f"{stem}{end}" for stem in ("wiki.{}.tokens", "wiki.{}.raw", "{}.txt") for end in ("", ".gz"))
URL_VARIABLE = "WIKITEXT_URL"
CHARACTER_COVERAGE = 0.9999
"""Share of the characters that get a piece of their own; in WikiText-2 the commonest 129 of 281."""


def archive_url(corpus: published.Corpus) -> str:
    """The address of its zip."""
    [file] = corpus.files.values()
    return file.url


EPILOG = f"""
The source is --from (a folder, or a zip), else --url, else ${URL_VARIABLE}, else
  wikitext-2     {archive_url(CORPORA["wikitext-2"])}
  wikitext-103   {archive_url(CORPORA["wikitext-103"])}
which the corpus' first author keeps; the published address at s3.amazonaws.com is dead. Wherever
the files come from, their word counts and checksums must be the published ones, or they are
refused. If a download is interrupted, the same command resumes it.
"""


@dataclass(frozen=True)
class Text:
    """What reading a split once reveals."""

    words: int
    bytes: int
    sha256: str
    sha1: str


def main() -> None:
    arguments = parse_arguments()
    dest = Path(os.path.abspath(arguments.dest))

    def build(place: Workplace) -> dict:
        tokenizer = make_tokenizer(arguments)
        source = find_source(arguments, dest)
        return prepare(arguments.corpus, source, tokenizer, place, arguments.allow_unverified)

    manifest = prepare_once(dest, build)
    check_same(manifest, arguments, dest)
    check_source(manifest, arguments, dest)
    print(f"{dest} is ready: {describe(manifest)}")


def parse_arguments() -> argparse.Namespace:
    """The options; contradictions end here."""
    parser = Parser("data-prep/wikitext.sh", __doc__, epilog=EPILOG)
    parser.add_argument("corpus", choices=[name for name in CORPORA if not name.endswith("-raw")])
    add_places(parser, "wiki.{train,valid,test}.tokens or {train,valid,test}.txt")
    parser.add_argument(
        "--tokenizer",
        choices=("words", "sentencepiece"),
        help="words as published (default), or pieces learnt from the train split",
    )
    parser.add_argument(
        "--vocab-size",
        type=count,
        metavar="N",
        help="size of fairseq's dictionary with sentencepiece (default 4000); "
        "words always take all words of the train split",
    )
    parser.add_argument(
        "--vocabulary-from",
        type=Path,
        metavar="FOLDER",
        help="use the vocabulary of this prepared folder, so that its models can read the result",
    )
    arguments = parser.parse_args()
    if arguments.vocabulary_from and (arguments.tokenizer or arguments.vocab_size):
        parser.error("--vocabulary-from settles the tokeniser: give no --tokenizer or --vocab-size")
    arguments.tokenizer = arguments.tokenizer or "words"
    if arguments.vocab_size and arguments.tokenizer != "sentencepiece":
        parser.error("--vocab-size goes with --tokenizer sentencepiece")
    arguments.vocab_size = arguments.vocab_size or 4000
    return arguments


def add_places(parser: Parser, files: str) -> None:
    """The options that say where the text comes from, in which `files`, and where the result goes."""
    parser.add_argument("--dest", type=Path, required=True, metavar="FOLDER", help="where the result goes")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="PATH",
        help=f"folder with {files}, each plain or packed as .gz; or the zip as published",
    )
    source.add_argument("--url", help="address of the zip, to be downloaded beside --dest")
    parser.add_argument(
        "--allow-unverified",
        action="store_true",
        help="only warn where the counts or checksums of WikiText are not the published ones",
    )


def make_tokenizer(arguments: argparse.Namespace) -> Tokenizer:
    """The tokeniser asked for, or that of the folder whose vocabulary shall be used."""
    folder = arguments.vocabulary_from
    name = arguments.tokenizer
    if folder:
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"--vocabulary-from: {folder} holds no prepared corpus")
        name = manifest["tokenizer"]
    if name == "words":
        return WordTokenizer(folder)
    if name != "sentencepiece":
        raise UserError(f"--vocabulary-from: {folder} has the tokens of {name}; give another folder")
    return SentencePieceTokenizer(arguments.vocab_size, CHARACTER_COVERAGE, folder)


def check_same(manifest: dict, arguments: argparse.Namespace, dest: Path) -> None:
    """Refuse to pass a folder prepared otherwise for what was asked."""
    wanted = {"corpus": arguments.corpus}
    if not arguments.vocabulary_from:
        wanted["tokenizer"] = arguments.tokenizer
        if arguments.tokenizer == "sentencepiece":
            wanted["vocabulary"] = arguments.vocab_size
    check_settings(dest, manifest, wanted)
    check_verified(manifest, arguments, dest)


def check_verified(manifest: dict, arguments: argparse.Namespace, dest: Path) -> None:
    """Refuse to pass a folder made from unverified files where --allow-unverified is not given."""
    if manifest["verified"] is False and not arguments.allow_unverified:
        raise UserError(
            f"{dest} was prepared from unverified files; name another --dest, or accept it with "
            "--allow-unverified"
        )


def check_source(manifest: dict, arguments: argparse.Namespace, dest: Path) -> None:
    """Raise UserError if the folder was made from a different text than --from gives."""
    if not arguments.source:
        return
    made_from = manifest.get("source", {})
    if not arguments.source.exists() and os.path.abspath(arguments.source) == made_from.get("path"):
        return  # removed since
    source = find_source(arguments, dest)
    for split in ("valid", "test", "train"):  # the small ones first
        with open_split(source, arguments.corpus, split) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        made = manifest["splits"][split]["sha256"]
        if found != made:
            size = made_from.get("bytes", {}).get(split)
            raise UserError(
                f"{dest} was prepared from another {split} split than that of {source}: from "
                f"{made_from.get('path', 'a text')} ({f'{size:,} bytes, ' if size is not None else ''}sha256 "
                f"{made[:12]}, not {found[:12]}); name another --dest or move it away"
            )


def find_source(arguments: argparse.Namespace, dest: Path) -> Path:
    """The folder or zip to read; a download lies beside `dest`, for the next preparation too."""
    if arguments.source:
        if not arguments.source.exists():
            raise UserError(f"{arguments.source} (given with --from) does not exist")
        return arguments.source
    corpus = CORPORA[arguments.corpus]
    url = arguments.url or os.environ.get(URL_VARIABLE) or archive_url(corpus)
    # A name of its own for each address: two sources are never mixed in one file.
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    stem = Path(urlsplit(url).path).stem or arguments.corpus
    archive = dest.with_name(f"{stem}-{digest}.zip")
    if archive.exists():
        print(f"Using {archive}, downloaded earlier.")
    else:
        download(url, archive, corpus.when_dead)
    if not zipfile.is_zipfile(archive):
        archive.unlink()
        raise UserError(
            f"{url} sent something that is not a zip file (now removed); give another address "
            "with --url or a folder with --from"
        )
    return archive


def prepare(
    corpus: str, source: Path, tokenizer: Tokenizer, place: Workplace, allow_unverified: bool
) -> dict:
    """Read and check the splits, the small ones first, then tokenise and binarise."""
    splits, complaints = {}, []
    for name in ("valid", "test", "train"):
        text = read_split(source, corpus, name, place.text(name))
        complaint = compare(corpus, name, text)
        if complaint and not allow_unverified:
            raise UserError(
                f"{source}: {complaint}; get the published file, or accept it with --allow-unverified"
            )
        print(f"{name}: {text.words:,} words, {complaint or 'as published'}", flush=True)
        complaints += [complaint] if complaint else []
        splits[name] = Split(text.words, text.sha256, text.bytes)
    splits = {name: splits[name] for name in SPLITS}
    own_words = isinstance(tokenizer, WordTokenizer) and tokenizer.dictionary is None
    manifest = finish(place, corpus, splits, tokenizer, verified=not complaints, source=source)
    expected = CORPORA[corpus].entry["words_dictionary"]
    if own_words and manifest["verified"] and manifest["vocabulary"] != expected:
        raise UserError(
            f"fairseq-preprocess made a dictionary of {manifest['vocabulary']:,} words instead of "
            f"the {expected:,} that models of {corpus} have; check the installed fairseq"
        )
    return manifest


def compare(corpus: str, split: str, text: Text) -> str:
    """What is wrong with a split, in words; empty if it is the published one."""
    expected = CORPORA[corpus].entry["splits"][split]
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


def read_split(source: Path, corpus: str, split: str, target: Path) -> Text:
    """Copy a split to `target` with single spaces between words, counting and hashing the source."""
    reader = SplitReader(source, corpus, split)
    with target.open("w", encoding="utf-8") as output:
        output.writelines(" ".join(line.split()) + "\n" for line in reader.lines())
    return reader.text()


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
                    line = content.decode("utf-8")
                    self.words += len(line.split()) + 1
                    yield line.rstrip("\n")
                    if self.read % 200_000 == 0:
                        print(f"  {self.split}: {self.words:,} words read", flush=True)
            except UnicodeDecodeError:
                raise UserError(
                    f"{self.source}: line {self.read} of the {self.split} split is not UTF-8 text"
                ) from None
            except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
                raise UserError(
                    f"{self.source} is damaged in its {self.split} split ({error}); get it again"
                ) from None

    def text(self) -> Text:
        """What the split was found to be, after all its lines."""
        if self.words == self.read:
            raise UserError(f"{self.source}: the {self.split} split is empty")
        return Text(self.words, self.bytes, self.sha256.hexdigest(), self.sha1.hexdigest())


@contextmanager
def open_split(source: Path, corpus: str, split: str) -> Iterator[BinaryIO]:
    """The split's bytes, unpacked; `source` or its subfolder named like the corpus is searched."""
    names = [name.format(split) for name in NAMES]
    if source.is_dir():
        paths = [folder / name for folder in (source, source / corpus) for name in names]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise UserError(f"{source} holds no {split} split of {corpus} (none of {', '.join(names)})")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield stream
        return
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
