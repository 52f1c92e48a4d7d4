"""fairseq's --wandb-project with a model of this plugin."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.logs import losses

BLOCK, HEADER = 32_768, 7  # bytes of LevelDB's log format, in which wandb keeps a run


def entries(log: Path) -> Iterator[bytes]:
    """The records of a run: each in pieces that do not cross blocks."""
    data, place, record = log.read_bytes(), HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@pytest.mark.slow
def test_a_run_without_network(commands, tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    flags = ("--wandb-project", "linear attention", "--max-update", "6", "--no-save")
    # No fork: wandb writes its last records when the interpreter ends.
    command = commands.train(tmp_path / "run", *flags)
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    projects, logged = set(), {}
    for record in map(Record.FromString, entries(log)):
        projects.add(record.run.project)
        for item in record.history.item:
            if "/".join(item.nested_key) == "train_inner/loss" or item.key == "train_inner/loss":
                logged[record.history.step.num] = float(item.value_json)
    assert "linear attention" in projects
    printed = losses(done.stdout + done.stderr)
    assert len(printed) == 6 and logged == pytest.approx(printed, abs=1e-3)
