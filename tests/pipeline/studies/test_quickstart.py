"""quickstart.sh with fewer updates: interrupted, continued, and asked for its table again."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.files import ROOT, begin
from pipeline.outputs import run_lock
from pipeline.studies import quickstart
from pipeline.training.log import read_records

UPDATES = 60  # an epoch, after which there is a checkpoint, has 57


def command(runs: Path) -> list[str]:
    return [str(ROOT / "scripts" / "quickstart.sh"), "--updates", str(UPDATES), "--runs", str(runs)]


def updates(log: Path) -> list[int]:
    """The updates in a training log, in order; none if there is no log."""
    if not log.exists():
        return []
    with log.open() as lines:
        return [int(r["num_updates"]) for kind, r in read_records(lines) if kind == "train_inner"]


def interrupt(runs: Path) -> str:
    """Press Ctrl-C while the first model trains; gives what was printed."""
    process = subprocess.Popen(
        command(runs),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    log = runs / "transnormer_t1" / "train.log"
    while process.poll() is None and not (runs / "transnormer_t1" / "checkpoint_last.pt").exists():
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert max(updates(log), default=0) < UPDATES
    return output


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Where everything goes."""
    if not (ROOT / ".venv" / "ready.json").exists():
        pytest.skip("needs .venv, which scripts/test.sh makes")
    return tmp_path_factory.mktemp("quick start") / "runs"


@pytest.mark.longest
@pytest.mark.slow
def test_interrupted_continued_and_repeated(runs, call, capsys):
    output = interrupt(runs)
    assert "error: interrupted" in output
    assert "Traceback" not in output
    call(quickstart, "--updates", UPDATES, "--runs", runs)
    output = capsys.readouterr().out
    logs = [runs / name / "train.log" for name in quickstart.ARCHITECTURES]
    done = [updates(log) for log in logs]
    assert done[0].count(10) == 1, "the first model started over instead of resuming"
    assert done[0][-1] == UPDATES // 10 * 10
    check_output(output, runs)
    call(quickstart, "--updates", UPDATES, "--runs", runs)
    again = capsys.readouterr().out
    assert again.count(": done before") == 3 and [updates(log) for log in logs] == done
    assert table_of(again) == table_of(output)


def table_of(output: str) -> list[str]:
    return output[output.index("architecture") :].splitlines()[:4]


def check_output(output: str, runs: Path) -> None:
    """The table, three continuations, and where things lie."""
    for row, architecture in zip(table_of(output)[1:], quickstart.ARCHITECTURES, strict=True):
        number = r"\s+([\d,.]+)"
        cells = re.fullmatch(architecture + number * 7 + r"\s+\d[\d,]* MiB", row)
        assert cells, row
        parameters, trained, *figures = (float(cell.replace(",", "")) for cell in cells.groups())
        assert 1e6 < parameters < 1.1e6 and trained == UPDATES
        assert all(figure > 1 for figure in figures)
        folder = runs / architecture
        assert (folder / "checkpoint_last.pt").exists() and any((folder / "tensorboard").iterdir())
    prompts = (quickstart.CONFIGS / "prompts.txt").read_text().splitlines()
    texts = output[output.index("continues three prompts") :].splitlines()[1:4]
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.strip().startswith(prompt)
    assert f"Logs, checkpoints and results: {runs}" in output


def test_fresh_moves_runs_of_quickstart_alone_aside(tmp_path, capsys):
    quickstart.start_over(tmp_path / "nothing yet")
    (tmp_path / "earlier-1").mkdir()
    (tmp_path / "quickstart.json").touch()
    for name, command in {"another": "finetune_glue.sh", "ours": "quickstart.sh"}.items():
        begin(tmp_path / name, command, "f")
        (tmp_path / name / "thesis.tex").touch()
    quickstart.start_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"earlier-1", "earlier-2", "another"}
    aside = tmp_path / "earlier-2"
    assert (aside / "quickstart.json").is_file() and (aside / "ours" / "thesis.tex").is_file()
    assert (tmp_path / "another" / "thesis.tex").is_file()
    assert capsys.readouterr().out == f"moved to {aside}: ours, quickstart.json\n"


def test_fresh_leaves_a_run_that_is_at_work(tmp_path):
    begin(tmp_path / "ours", "quickstart.sh", "f")
    with run_lock(tmp_path / "ours"), pytest.raises(UserError, match="in use by process .* another --out"):
        quickstart.start_over(tmp_path)
    assert (tmp_path / "ours").is_dir()


def test_two_at_once(tmp_path, refused):
    with run_lock(tmp_path, option="--out"):
        sentence = refused(quickstart, "--out", tmp_path)
    assert "in use by process" in sentence and sentence.endswith("--out")


def test_updates_must_be_positive(refused):
    assert "is not a whole number of 1 or more" in refused(quickstart, "--updates", 0)
