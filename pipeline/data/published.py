"""Where the corpora come from: what data-prep/sources.json says."""

from dataclasses import dataclass
from typing import Any

from pipeline.files import ROOT, read_json


@dataclass(frozen=True)
class PublishedFile:
    """A file as published; None where size (bytes) or sha256 are not known."""

    url: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus by name.

    `when_dead` completes "if the address is dead, ..."; `entry` is all that sources.json says of the corpus.
    """

    name: str
    licence: str
    when_dead: str
    files: dict[str, PublishedFile]
    entry: dict[str, Any]


def read_corpus(name: str, entry: dict[str, Any]) -> Corpus:
    """The corpus `name` from its `entry` in sources.json."""
    files = {
        file: PublishedFile(f"{entry['address']}/{file}", facts["size"], facts["sha256"])
        for file, facts in entry["files"].items()
    }
    return Corpus(name, entry["licence"], entry["when_dead"], files, entry)


CORPORA = {
    name: read_corpus(name, entry) for name, entry in read_json(ROOT / "data-prep" / "sources.json").items()
}
