"""quickstart.sh with fewer updates: interrupted, continued, and asked for its table again."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab.commands import quickstart
from lab.errors import UserError
from lab.files import RESULTS, ROOT, begin, run_lock, write_json
from lab.run import log as logs
from lab.store import STORE, stored
from lab.study.page import PAGE, publish
from lab.study.records import read_records

UPDATES = 20  # the log has every tenth


@pytest.fixture
def cells(tmp_path):
    """The runs of the command in `tmp_path`."""
    return quickstart.asked_cells(quickstart.parse(["--out", str(tmp_path)]))


def updates(log: Path) -> list[int]:
    """The updates in a training log, in order; none if there is no log."""
    if not log.exists():
        return []
    with log.open() as lines:
        return [int(r["num_updates"]) for kind, r in logs.log_entries(lines) if kind == "train_inner"]


def interrupt(out: Path) -> str:
    """Press Ctrl-C while the first model trains, on one core, so alone; returns the output."""
    process = subprocess.Popen(
        [ROOT / "scripts" / "quickstart.sh", "--updates", str(UPDATES), "--runs", out],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # a GPU may finish before the signal
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    log = out / "transnormer_t1" / "seed1" / "train.log"
    while process.poll() is None and not updates(log):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert updates(log) == [10]
    return output


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.exhaustive
def test_interrupted_continued_and_repeated(tmp_path, call, capsys):
    if not (ROOT / ".venv" / "ready.json").exists():
        pytest.skip("needs .venv, which scripts/test.sh makes")
    out = tmp_path / "quick start"
    output = interrupt(out)
    assert "error: interrupted" in output
    assert "Traceback" not in output
    call(quickstart, "--updates", UPDATES, "--out", out)
    output = capsys.readouterr().out
    names = ("transnormer_t1", "transnormer_t2", "transformer_lm")
    logs = [out / name / "seed1" / "train.log" for name in names]
    done = [updates(log) for log in logs]
    assert done[0].count(10) == 1, "the first model started over instead of resuming"
    assert done[0][-1] == UPDATES // 10 * 10
    check_output(output, out)
    call(quickstart, "--updates", UPDATES, "--out", out)
    again = capsys.readouterr().out
    assert "3 runs, 3 done before" in again and [updates(log) for log in logs] == done
    assert table_of(again) == table_of(output)


def table_of(output: str) -> list[list[str]]:
    """The rows of figures, cell by cell."""
    rows = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("| ")]
    return rows[2:]


def check_output(output: str, out: Path) -> None:
    """The table, three continuations, and where things lie."""
    for log in out.glob("*/seed1/train.log"):
        assert (log.parent / "checkpoint_last.pt").exists() and any((log.parent / "tensorboard").iterdir())
    names, figures = zip(*((row[0], row[1:]) for row in table_of(output)), strict=True)
    assert names == ("TransNormer T1", "TransNormer T2", "vanilla", "token frequencies")
    assert all(float(figure.replace(",", "")) >= 1 for row in figures[:3] for figure in row)
    texts = output[output.index("continues three prompts") :].splitlines()[1:4]
    for prompt, text in zip(quickstart.PROMPTS.read_text().splitlines(), texts, strict=True):
        assert text.strip().startswith(prompt)
    assert f"Logs, checkpoints and results: {out}" in output


def test_fresh_moves_runs_of_quickstart_alone_aside(cells, tmp_path, capsys):
    quickstart.start_over(cells)
    (tmp_path / "earlier-1").mkdir()
    (tmp_path / PAGE).touch()
    (tmp_path / "portrait.png").touch()
    begin(tmp_path / "another", "finetune_glue.sh", "f")
    run = cells[0].folder
    begin(run, "study.sh", "f")
    (run / "thesis.tex").touch()
    quickstart.start_over(cells)
    assert {path.name for path in tmp_path.iterdir()} == {"earlier-1", "earlier-2", "another", "portrait.png"}
    aside = tmp_path / "earlier-2"
    assert (aside / PAGE).is_file() and (aside / run.relative_to(tmp_path) / "thesis.tex").is_file()
    assert capsys.readouterr().out == f"moved to {aside}: transnormer_t1, {PAGE}\n"


def test_fresh_moves_a_store_aside_and_nothing_continues_without_a_checkpoint(cells, tmp_path):
    (tmp_path / STORE).touch()
    assert quickstart.continuations(cells[0]) == []
    quickstart.start_over(cells)
    assert {path.name for path in tmp_path.iterdir()} == {"earlier-1"}
    assert (tmp_path / "earlier-1" / STORE).is_file()


def test_fresh_starts_over_beside_the_earlier_records(cells, tmp_path):
    study, committed = cells[0].study, stored(RESULTS / "quickstart")
    for place, record in committed.items():
        write_json(tmp_path / place, record)
    assert len(read_records(tmp_path, study)) == len(committed)
    quickstart.start_over(cells)
    assert len([*(tmp_path / "earlier-1").rglob("seed1.json")]) == len(committed)
    assert read_records(tmp_path, study) == [] and publish(study, tmp_path) == []


def test_fresh_leaves_a_run_that_is_at_work(cells):
    begin(cells[0].folder, "study.sh", "f")
    in_use = pytest.raises(UserError, match="in use by process .* another --out")
    with run_lock(cells[0].folder.parent), in_use:
        quickstart.start_over(cells)
    assert cells[0].folder.is_dir()
