"""The corpora as published (data-prep/sources.json): the download of a file, which resumes, and a check."""

import fcntl
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from conventions.files import open_to_append
from lab.errors import UserError
from lab.files import ROOT, made_folder, read_json, shown_path

CHUNK = 1 << 20
SILENCE = 60
"""Seconds without a byte after which a download counts as interrupted."""

USER_AGENT = "transnormer-data-prep/1.0"
"""Some hosts answer Python's own name with 403."""


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


OWN_TEXT = "text"
"""A user's own corpus, without published files."""
TEXTS = {name: corpus for name, corpus in CORPORA.items() if "splits" in corpus.entry}
URL_VARIABLE = "WIKITEXT_URL"


def archive_url(corpus: Corpus) -> str:
    """The address of its zip."""
    [file] = corpus.files.values()
    return file.url


def fetch(url: str, path: Path, other_sources: str) -> None:
    """Download `url` to `path` unless the file is already there."""
    if path.is_file():
        print(f"Using {shown_path(path)}, downloaded earlier.", flush=True)
    else:
        download(url, path, other_sources)


def address_mark(url: str) -> str:
    """Eight digits that identify `url` in file names, so that two sources never share a file."""
    return hashlib.sha256(url.encode()).hexdigest()[:8]


def download(url: str, path: Path, other_sources: str) -> None:
    """Fetch `url` to `path`, which appears only when every announced byte is there.

    A partial download stays beside it under the name `partial_of`, and the next call resumes it. Errors end
    with `other_sources`, the user's alternatives.
    """
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{url} is not an http or https address")
    partial = partial_of(url, path)
    with made_folder(path.parent), open_to_append(partial) as output:
        _claim(output, partial)
        try:
            _receive(url, output)
        except urllib.error.HTTPError as error:
            raise UserError(f"{url} answered {error.code} {error.reason}; {other_sources}") from None
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            ConnectionError,
            TimeoutError,
            ValueError,  # an address with characters that none may have
        ) as error:
            reason = getattr(error, "reason", error)
            again = "run the same command again to resume"
            advice = again if output.tell() else f"try again later, or {other_sources}"
            raise UserError(f"no download from {url} ({reason}); {advice}") from None
        finally:
            if not output.tell():
                partial.unlink()
        os.replace(partial, path)  # before the lock ends


def partial_of(url: str, path: Path) -> Path:
    """The temporary name of a download from `url`, unique to it."""
    return path.with_name(f".{address_mark(url)}.{path.name}.part")


def _claim(output: BinaryIO, partial: Path) -> None:
    """Lock the file: two downloads into one file would corrupt it.

    The package filelock would need a second file beside it, which it leaves behind.
    """
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another run is downloading {partial}; wait for it or stop it") from None
    except OSError:
        pass  # a file system without locks


def _receive(url: str, output: BinaryIO) -> None:
    start = output.tell()
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urllib.request.urlopen(request, timeout=SILENCE)
    except urllib.error.HTTPError as error:
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{start}":
                return  # it had all arrived already
            _empty(output)
            return _receive(url, output)
        raise
    with response:
        if start and response.status != http.client.PARTIAL_CONTENT:
            _empty(output)  # a server without support for ranges sends the whole file
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        print(f"{'Continuing' if start else 'Downloading'} {url}", flush=True)
        _copy(response, output, start, total)


def _empty(output: BinaryIO) -> None:
    output.seek(0)
    output.truncate()


def _copy(source: BinaryIO, output: BinaryIO, done: int, total: int | None) -> None:
    announced = done
    while chunk := source.read(CHUNK):
        output.write(chunk)
        done += len(chunk)
        if done - announced >= (total or 1 << 28) // 20:
            announced = done
            print(f"  {done / 1e6:,.1f} of {f'{total / 1e6:,.1f}' if total else '?'} MB", flush=True)
    output.flush()
    if not done:
        raise ConnectionError("the answer is empty")
    if total is not None and done != total:
        raise ConnectionError(f"it ended after {done:,} of {total:,} bytes")


PATIENCE = 30
"""Seconds for a server to answer."""

AT_ONCE = 8
HEAD_REFUSED = (403, 405, 501)
"""Statuses with which servers that know only GET answer HEAD."""


@dataclass(frozen=True)
class ServerAnswer:
    """A server's status and the size it announces, or, without `status`, why there was no answer."""

    status: int | None
    size: int | None = None
    reason: str = ""


def main(options: Namespace) -> None:
    """Ask each address."""
    names = options.corpus or list(CORPORA)
    for name in names:
        if name not in CORPORA:
            raise UserError(f"there is no corpus {name}; choose from {', '.join(CORPORA)}")
    check(CORPORA[name] for name in names)


def check(corpora: Iterable[Corpus]) -> None:
    """Print a line per file of `corpora`; UserError if a file has changed or no address answers."""
    wanted = [(corpus, file) for corpus in corpora for file in corpus.files.values()]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda pair: ask(pair[1].url), wanted))
    if all(answer.status is None for answer in answers):
        raise UserError(
            f"none of the {len(answers)} addresses can be reached ({answers[0].reason}); "
            "run this command on a machine with a network"
        )
    failed = 0
    for (corpus, file), answer in zip(wanted, answers, strict=True):
        verdict = judge(file, answer)
        ok = verdict.startswith("ok")
        failed += not ok
        print(f"{verdict:<34} {corpus.name:<16} {file.url}" + ("" if ok else f"; {corpus.when_dead}"))
    if failed:
        raise UserError(f"{failed} of {len(wanted)} addresses have changed or are dead; see above")


def judge(file: PublishedFile, answer: ServerAnswer) -> str:
    """The verdict on one address, beginning with ok, CHANGED or DEAD."""
    if answer.status != http.client.OK:
        return f"DEAD ({answer.status or answer.reason})"
    if answer.size is None:
        return "ok, size not announced"
    if file.size not in (None, answer.size):
        return f"CHANGED, {answer.size:,} bytes, not {file.size:,}"
    return f"ok, {answer.size:,} bytes"


def ask(url: str) -> ServerAnswer:
    """Ask the server about `url` with HEAD; if it refuses, with a GET that reads no content."""
    answer = _request(url, "HEAD")
    return _request(url, "GET") if answer.status in HEAD_REFUSED else answer


def _request(url: str, method: str) -> ServerAnswer:
    request = urllib.request.Request(url, method=method, headers={"User-Agent": USER_AGENT})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            length = response.headers.get("Content-Length", "")
            return ServerAnswer(response.status, int(length) if length.isdecimal() else None)
    except urllib.error.HTTPError as error:
        error.close()
        return ServerAnswer(error.code)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        return ServerAnswer(None, reason=str(getattr(error, "reason", error)))
