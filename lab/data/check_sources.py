"""Ask whether the corpora's addresses still answer; nothing is downloaded.

One line per address of data-prep/sources.json: ok, CHANGED (another size than published) or DEAD, and
what to do then. The exit code is 0 only if all are ok.
"""

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lab.console import Parser
from lab.data.published import CORPORA, USER_AGENT, Corpus, PublishedFile
from lab.errors import UserError

PATIENCE = 30
"""Seconds for a server to answer."""

AT_ONCE = 8
HEAD_REFUSED = (403, 405, 501)
"""Statuses with which servers that know only GET answer HEAD."""


@dataclass(frozen=True)
class Answer:
    """A server's status and the size it announces, or, without `status`, why there was no answer."""

    status: int | None
    size: int | None = None
    reason: str = ""


def main() -> None:
    parser = Parser("data-prep/check_sources.sh", __doc__)
    parser.add_argument("corpus", nargs="*", metavar="CORPUS", help=f"{', '.join(CORPORA)} (default: all)")
    names = parser.parse_args().corpus or list(CORPORA)
    for name in names:
        if name not in CORPORA:
            raise UserError(f"there is no corpus {name}; choose from {', '.join(CORPORA)}")
    check(CORPORA[name] for name in names)


def check(corpora: Iterable[Corpus]) -> None:
    """Print a line per file of `corpora`; UserError if one is not as published, or if there is no network."""
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
        raise UserError(f"{failed} of {len(wanted)} addresses are not as published; see above what to do")


def judge(file: PublishedFile, answer: Answer) -> str:
    """The verdict on one address, beginning with ok, CHANGED or DEAD."""
    if answer.status != http.client.OK:
        return f"DEAD ({answer.status or answer.reason})"
    if answer.size is None:
        return "ok, size not announced"
    if file.size not in (None, answer.size):
        return f"CHANGED, {answer.size:,} bytes, not {file.size:,}"
    return f"ok, {answer.size:,} bytes"


def ask(url: str) -> Answer:
    """What the server says about `url`, by HEAD or, where it refuses that, by a GET that reads nothing."""
    answer = _request(url, "HEAD")
    return _request(url, "GET") if answer.status in HEAD_REFUSED else answer


def _request(url: str, method: str) -> Answer:
    request = urllib.request.Request(url, method=method, headers={"User-Agent": USER_AGENT})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            length = response.headers.get("Content-Length", "")
            return Answer(response.status, int(length) if length.isdecimal() else None)
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(error.code)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        return Answer(None, reason=str(getattr(error, "reason", error)))
