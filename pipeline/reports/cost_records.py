"""Records of the cost benchmarks: what was measured of an architecture at a length, and where."""

import statistics
from dataclasses import dataclass
from typing import Any

from pipeline.reports.tables import where


@dataclass(frozen=True)
class Cell:
    """What is known of an architecture at a length or position: samples and records of all its processes."""

    at: int
    status: str
    seconds: list[float]
    records: list[dict[str, Any]]

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def peak(self) -> float:
        """The largest peak memory, in MiB."""
        return max(record["peak_bytes"] for record in self.records) / 2**20


def cell(results: dict[str, Any], kind: str, architecture: str, at: int) -> Cell | None:
    """The samples of `architecture` at length or position `at`, or None if it was not measured."""
    records = [
        r
        for r in results["records"]
        if r["kind"] == kind
        and r["architecture"] == architecture
        and (kind == "decoding" or r["length"] == at)
    ]
    good = [r for r in records if r["status"] == "ok"]
    if not good:
        return Cell(at, records[0]["status"], [], []) if records else None
    by_record = (
        r["token_seconds"].get(str(at), []) if kind == "decoding" else r["step_seconds"] for r in good
    )
    seconds = [x for times in by_record for x in times]
    return Cell(at, "ok", seconds, good) if seconds else None


def precision(results: dict[str, Any]) -> str:
    """The type of the numbers in training."""
    return "bfloat16" if results["settings"].get("bf16") else "float32"


def measured_on(results: dict[str, Any]) -> str:
    """Machine, versions, dates and commits in one sentence."""
    session, threads = results["sessions"][-1], results["settings"]["threads"]
    runs = sorted({f"{s['date']} (commit {s['commit']})" for s in results["sessions"]})
    return f"{where(session, threads)}, torch {session['versions']['torch']}, {' and '.join(runs)}."
