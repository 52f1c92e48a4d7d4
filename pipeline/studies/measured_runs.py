"""What the measured results have in common: when a run is done, and what its log tells."""

import hashlib
import json
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.files import ROOT, read_json, shown_path
from pipeline.training.progress import read_records

EVALUATED = ("valid", "test")


def short_hash(decisive: Any) -> str:
    """A fingerprint of everything that decides a result."""
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12]


def prepare(script: str, *arguments: str | Path) -> None:
    """Run a script of data-prep/."""
    command = [ROOT / "data-prep" / script, *arguments]
    if subprocess.run([str(word) for word in command]).returncode:
        raise UserError("the data could not be prepared (the reason stands above)")


def prepared_wikitext2(script: str, folder: Path, source: Path | None, *options: str) -> PreparedData:
    """WikiText-2 in `folder`, prepared first if need be by `script` from `source` (or by download)."""
    if not (folder / "preparation.json").is_file():
        origin = ["--from", source.absolute()] if source else []
        prepare(script, "wikitext-2", "--dest", folder, "--tokenizer", "sentencepiece", *options, *origin)
    return open_prepared(folder, ("train", *EVALUATED))


def is_done(result: Path, mark: str) -> bool:
    """Whether `result` holds the run with fingerprint `mark`; UserError if it holds another one."""
    if not result.exists():
        return False
    if read_json(result).get("fingerprint") != mark:
        raise UserError(
            f"{shown_path(result)} was measured with other settings; move it away, or name "
            "another folder with --out"
        )
    return True


def training_figures(log: Iterable[str]) -> dict[str, Any]:
    """Curves (update, bits per token), speed, batch and memory from the log of a run.

    A resumed run repeats the updates after its last checkpoint: the later record counts, the time of
    both does.
    """
    train_loss: dict[int, float] = {}
    valid_loss: dict[int, float] = {}
    updates, speeds, batches, peak = [], [], [], None
    for kind, record in read_records(log):
        if kind == "train_inner":
            updates.append(int(record["num_updates"]))
            train_loss[updates[-1]] = record["loss"]
            speeds.append(record["wps"])
            batches.append(record["wpb"])
        elif kind == "valid":
            valid_loss[int(record["valid_num_updates"])] = record["valid_loss"]
        elif kind == "usage":
            peak = max(peak or 0, int(record["peak_memory"]))
    if not train_loss or not valid_loss:
        raise UserError("the training log holds no losses; was log_format in the YAML changed?")
    return {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_update": statistics.median(batches),
        "peak_memory_bytes": peak,
        "train_seconds": seconds_at_speed(updates, batches, speeds),
        "curves": {"train": sorted(train_loss.items()), "valid": sorted(valid_loss.items())},
    }


def seconds_at_speed(updates: Sequence[int], batches: Sequence[float], speeds: Sequence[float]) -> float:
    """The time of a training from its log: of all tokens at the speed of their record.

    fairseq's own clock ("wall") stands still in a resumed process.
    """
    interval = min((b - a for a, b in pairwise(updates) if b > a), default=updates[0])
    usual = statistics.median(speeds)
    pairs = zip(batches, speeds, strict=True)
    return sum(interval * batch / (speed or usual) for batch, speed in pairs if speed or usual)
