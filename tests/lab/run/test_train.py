"""train_lm.sh: the command it makes, resuming, several nodes, bad input, and --plan.

A plan comes from the log of the run, from its first updates, or without either.
"""

import re
import resource
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace

import pytest

from lab.files import ROOT
from lab.papers import read_table
from lab.run import train as train_lm
from lab.run.commands import Pace, pace_of, plan_lines
from lab.run.launch import free_port
from lab.run.log import read_log
from tests.helpers import forked
from tests.helpers.tiny import losses

TRAIN_LM = "scripts/train_lm.sh"
LINE = '2026-01-01 00:00:00 | INFO | train_inner | {"num_updates": "%d", "wpb": "%d", "wps": "%d"}\n'
READ = Namespace(
    update_freq=[2], max_update=100_000, batch_size=8, tokens_per_sample=512, max_tokens=None, arch=""
)


def last_value(line: str, flag: str) -> str:
    words = shlex.split(line)
    return words[len(words) - words[::-1].index(flag)]


def test_dry_run_prints_the_command_and_writes_nothing(call, config, tmp_path, capsys):
    save_dir = tmp_path / "a 'run'"
    call(
        TRAIN_LM,
        config,
        tmp_path / "my data",
        "--gpus",
        0,
        "--dry-run",
        "--save-dir",
        save_dir,
        "--lr",
        "0.5",
        "--max-update",
        "7",
    )
    line = capsys.readouterr().out.strip()
    assert shlex.split(line)[1] == str(tmp_path / "my data")
    assert last_value(line, "--arch") == "transnormer_t1"
    assert last_value(line, "--lr") == "0.5" and last_value(line, "--max-update") == "7"
    assert last_value(line, "--update-freq") == "4"  # 2 processes x 2 steps on one
    assert last_value(line, "--save-dir") == str(save_dir)
    assert "--cpu" in shlex.split(line)
    assert not save_dir.exists()


def test_dry_run_loads_no_library_that_it_does_not_use(config, tmp_path):
    code = (
        "import gc, sys; from lab.cli import run; run(); "
        "assert gc.isenabled() and not {'torch._dynamo', 'sklearn', 'scipy'} & set(sys.modules)"
    )
    program = f"import sys; {code}"
    words = [TRAIN_LM, config, tmp_path, "--gpus", "0", "--dry-run"]
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fairseq-train" in done.stdout


def test_dry_run_needs_no_gpu(call, refused, config, tmp_path, monkeypatch, capsys):
    """It makes .venv on the login node of a cluster (docs/cluster.md)."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = [config, tmp_path, "--gpus", 2]
    call(TRAIN_LM, *words, "--dry-run", "--fp16", "--profile")
    assert last_value(capsys.readouterr().out, "--distributed-world-size") == "2"
    assert "this machine has 0 usable GPUs; give fewer, or 0 for the CPU" in refused(TRAIN_LM, *words)
    assert "--profile is for nsys" in refused(TRAIN_LM, config, tmp_path, "--gpus", 0, "--profile")


def test_own_update_freq_is_left_alone(call, config, tmp_path, capsys):
    call(TRAIN_LM, config, tmp_path, "--gpus", 0, "--dry-run", "--update-freq", 3)
    assert shlex.split(capsys.readouterr().out).count("--update-freq") == 1


def test_training_writes_checkpoints_log_curves_and_dictionary(trained, corpus):
    assert list(losses(trained)) == [1, 2, 3, 4]
    names = {path.name for path in trained.iterdir()}
    assert {"checkpoint_last.pt", "checkpoint_best.pt", "train.log", "tensorboard"} <= names
    assert (trained / "dict.txt").read_bytes() == (corpus / "dict.txt").read_bytes()


@pytest.mark.slow
def test_resumes_from_the_last_whole_checkpoint(call, config, corpus, trained, tmp_path, capsys):
    """An interrupted save has left half of checkpoint_last.pt; the run began with other weights."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    last = folder / "checkpoint_last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    start = ("--restore-file", trained / "checkpoint_last.pt", "--reset-optimizer", "--reset-dataloader")
    call(TRAIN_LM, config, corpus, "--gpus", 0, "--save-dir", folder, "--max-update", 6, *start)
    assert "resuming from checkpoint" in capsys.readouterr().out
    logged = read_log(folder / "train.log")["train_inner"]
    assert [record["num_updates"] for record in logged] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_diverged_nodes_end_each_in_one_sentence(config, corpus, tmp_path, root):
    """Neither prints a traceback, neither waits for the other."""
    master = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "lab", TRAIN_LM, config, corpus, "--gpus", 0]
    command += ["--nodes", "2", "--master", master, "--save-dir", tmp_path, "--lr", "1e30", "--node-rank"]
    for node in [forked.start([*command, rank], cwd=root) for rank in range(2)]:
        done = node.wait()
        assert done.returncode == 1
        assert re.fullmatch(r"error: training has diverged: .* at update \d+.*\n", done.stderr)
    for log in ("train.log", "train.node1.log"):
        assert "Traceback" not in (tmp_path / log).read_text()


@pytest.mark.parametrize(
    ("saved", "sentence"),
    [(False, "nothing was saved, so the same command starts at update 1"), (True, "resumes after update 4")],
)
def test_an_interruption_says_from_where_the_same_command_resumes(
    saved, sentence, call, config, corpus, trained, tmp_path, monkeypatch, capsys
):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    folder = shutil.copytree(trained, tmp_path / "run") if saved else tmp_path / "run"
    monkeypatch.setattr(train_lm, "run_fairseq", interrupted)
    with pytest.raises(SystemExit) as ended:
        call(TRAIN_LM, config, corpus, "--gpus", 0, "--save-dir", folder, "--max-update", 6)
    assert ended.value.code == 130 and sentence in capsys.readouterr().err


@pytest.mark.slow
def test_full_disk(config, corpus, tmp_path):
    """Files are limited to 20 kB, less than a checkpoint."""
    command = [sys.executable, "-m", "lab", TRAIN_LM, config, corpus, "--gpus", "0"]
    started = forked.start([*command, "--save-dir", tmp_path / "run"])
    resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
    done = started.wait()
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and "disk" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_pace_is_that_of_the_later_half(tmp_path):
    log = tmp_path / "train.log"
    assert pace_of(log) is None
    log.write_text("".join(LINE % x for x in ((5, 64, 1), (10, 64, 2), (15, 64, 30))))
    assert pace_of(log) is None
    with log.open("a") as file:
        file.write(LINE % (20, 64, 40))
        file.write('2026-01-01 00:00:00 | INFO | usage | {"peak_memory": 1073741824}\n')
    assert pace_of(log) == Pace(64, 35, 2**30)


def test_tokens_without_a_measurement():
    lines = plan_lines("x/y", READ, 8, None, None)
    assert lines[0] == "updates   100,000 of 65,536 tokens, 6,553,600,000 in all"
    assert "not measured" in lines[1] and len(lines) == 2


def test_hours_memory_and_epochs():
    lines = plan_lines("x/y", READ, 8, Pace(65_536, 1_000_000, 3 * 2**30), 103_000_000)
    assert "epochs    63.6 of 103,000,000 tokens" in lines
    assert "hours     1.8 at 1,000,000 tokens per second" in lines
    assert "memory    3.0 GiB in each process" in lines


@pytest.mark.parametrize(
    ("name", "arch", "method"),
    [
        ("wikitext103/transnormer_t1", "transnormer_t1", "TransNormer T1"),
        ("wikitext103/transformer_lm", "transformer_lm", "Vanilla"),
        ("wikitext103/lln_lm", "lln_lm", None),
        ("wikitext2/transnormer_t1", "transnormer_t1", None),
    ],
)
def test_the_papers_row(name, arch, method):
    lines = plan_lines(name, Namespace(**{**vars(READ), "arch": arch}), 8, None, None)[2:]
    if method is None:
        assert not lines
        return
    (row,) = (x for x in read_table("transnormer_04_wikitext103_lm") if x["method"] == method)
    assert row["ppl_val"] in lines[0] and row["ppl_test"] in lines[0]
    assert f"{0.98 * float(row['ppl_val']):.2f} to {1.02 * float(row['ppl_val']):.2f} valid" in lines[1]


def test_a_dry_plan_writes_nothing(call, config, tmp_path, capsys):
    save_dir = tmp_path / "run"
    words = ("--gpus", 0, "--dry-run", "--plan", "--save-dir", save_dir)
    call(TRAIN_LM, config, tmp_path / "data", *words)
    said = capsys.readouterr().out
    assert "updates   4 of" in said and "not measured" in said
    assert not save_dir.exists()


def test_a_plan_trains_the_first_updates_and_leaves_nothing(call, config, corpus, tmp_path, capsys):
    save_dir = tmp_path / "run"
    call(TRAIN_LM, config, corpus, "--gpus", 0, "--plan", "--save-dir", save_dir)
    said = capsys.readouterr().out
    assert "tokens per second" in said and "epochs" in said and "GiB in each process" in said
    assert not save_dir.exists()
