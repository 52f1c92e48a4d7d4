"""A small English corpus that needs no download: CPython's own language reference.

Every CPython ships the reference as `pydoc_data.topics` (about 65,000 words, for `help("for")`). Each section
of its prose becomes a document, passages are kept once, and splits consist of whole documents.
"""

import hashlib
import math
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lab.data.preparation import Split, check_prepared_with, describe, finish, prepare_once, text_path
from lab.data.prepared import SPLITS
from lab.data.tokenization import learn_pieces
from lab.errors import UserError

CORPUS = "python-reference"
HELD_OUT = 0.1
"""Share of the words in each of valid and test."""

UNDERLINE = re.compile(r"([*=~^\"#+-])\1{2,}")
TABLE = re.compile(r"\+[-=]|\|")
CODE = re.compile(r"::=|>>>")
BULLET = re.compile(r"(\* |\d+\. |\[\d+\] )")
FOOTNOTE = re.compile(r" \[\d+\]")
EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])")
PLAIN_WORD = re.compile(r"[\"“(*]*[A-Za-z]+(['’-][A-Za-z]+)*[\"”).,:;?!*’s]*")
SENTENCE_END = re.compile(r"[.:;?!][\"”)]*$")
FEWEST_WORDS = 4
LEAST_PLAIN = 0.6
"""Share of a passage's words that must be plain English words for it to count as prose."""


@dataclass
class Document:
    """A section of the reference: its title and its paragraphs, one line each."""

    title: str
    paragraphs: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """The document as it enters the corpus."""
        return [self.title, *self.paragraphs]

    @property
    def words(self) -> int:
        """White-space words plus one end-of-line per line."""
        return sum(len(line.split()) + 1 for line in self.lines)

    @property
    def key(self) -> str:
        """A stable order, unrelated to the content's."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


def main(arguments: Namespace) -> None:
    """Prepare the corpus, or check the existing one."""
    dest, size = arguments.dest, arguments.vocab_size
    manifest = prepare_once(dest, lambda folder: prepare(load_topics(), size, folder))
    check_prepared_with(dest, manifest, {"corpus": CORPUS, "vocabulary": size})
    print(f"{dest} is ready: {describe(manifest)}")


def load_topics() -> dict[str, str]:
    """The reference, by topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python lacks pydoc_data.topics; install its full standard library or use "
            "a python.org, conda or pyenv build"
        ) from None
    return topics


def prepare(topics: dict[str, str], vocabulary: int, folder: Path) -> dict:
    """Cut, split, write the texts and have them tokenised and binarised."""
    splits = {}
    for name, documents in split_documents(cut_documents(topics)).items():
        text = "".join(f"{line}\n" for document in documents for line in document.lines)
        words = sum(document.words for document in documents)
        print(f"{name}: {len(documents)} documents, {words:,} words", flush=True)
        content = text.encode()
        text_path(folder, name).write_bytes(content)
        splits[name] = Split(words, len(content), hashlib.sha256(content).hexdigest())
    tokenize = partial(learn_pieces, vocabulary=vocabulary, character_coverage=1.0)
    return finish(folder, CORPUS, splits, tokenize, verified=True)


def cut_documents(topics: dict[str, str]) -> list[Document]:
    """One document per section, with every passage only once in the whole corpus.

    Topics overlap (`help("compound")` contains `help("for")`): the longest come first, so that sections stay
    whole and the repetitions drop out. Otherwise a model would be tested on text that it was trained on.
    """
    documents, seen = [], set()
    for name, text in sorted(topics.items(), key=lambda topic: (-len(topic[1]), topic[0])):
        documents.append(Document(name))
        for block in _blocks(text):
            if title := _heading(block):
                documents.append(Document(title))
            elif paragraph := _prose(block):
                letters = re.sub(r"[^a-z]+", " ", paragraph.lower())
                if letters not in seen:
                    seen.add(letters)
                    documents[-1].paragraphs.append(paragraph)
    return [document for document in documents if document.paragraphs]


def split_documents(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Split whole documents, in an order that depends on their text alone, into train, valid and test."""
    ordered = sorted(documents, key=lambda document: document.key)
    share = HELD_OUT * sum(document.words for document in ordered)
    room = {"train": math.inf, "test": share, "valid": share}
    splits: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for document in ordered:
        fitting = [name for name in ("test", "valid", "train") if document.words <= room[name]]
        name = "train" if document.words > share / 4 else fitting[0]  # no split consists of one document
        room[name] -= document.words
        splits[name].append(document)
    return splits


def _blocks(text: str) -> Iterator[list[str]]:
    """The runs of lines between empty lines."""
    for block in re.split(r"\n\s*?\n", text):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines:
            yield lines


def _heading(lines: list[str]) -> str:
    """The title, if these lines are an underlined heading."""
    if len(lines) == 2 and UNDERLINE.fullmatch(lines[1].strip()):
        return _clean(lines[0])
    return ""


def _prose(lines: list[str]) -> str:
    """The paragraph these lines make; nothing for tables, grammar, code and scraps."""
    text = " ".join(line.strip() for line in lines)
    if any(TABLE.match(line.lstrip()) for line in lines) or CODE.search(text):
        return ""
    bulleted = BULLET.match(text)
    text = _clean(text)
    words = text.split()
    plain = sum(bool(PLAIN_WORD.fullmatch(word)) for word in words)
    if len(words) < FEWEST_WORDS or plain < LEAST_PLAIN * len(words):
        return ""
    indented = lines[0].startswith("   ")  # program text, unless it ends like a sentence
    if indented and not bulleted and not SENTENCE_END.search(text):
        return ""
    return text


def _clean(text: str) -> str:
    """Without bullets, footnote marks and the stars of emphasis, with single spaces."""
    text = text.strip()
    if bullet := BULLET.match(text):
        text = text[bullet.end() :]
    return " ".join(EMPHASIS.sub(r"\1", FOOTNOTE.sub("", text)).split())
