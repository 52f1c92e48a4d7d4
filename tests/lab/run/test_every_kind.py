"""Every kind of training: files, curves, resuming after a kill, several processes, refusals."""

import shlex
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lab.run.checkpoint import read_checkpoint
from lab.run.kinds import KINDS
from lab.run.launch import Machines, free_port
from lab.run.log import read_log
from lab.run.plan import read_experiment
from lab.run.process import run_fairseq
from lab.run.recipe import fairseq_arguments
from tests.helpers import tiny
from tests.helpers.tiny import losses

LAST = "checkpoint_last.pt"
WITHOUT_CHANCE = "--max-update 4 --disable-validation --batch-size 4 --dropout 0 --attention-dropout 0"
BY_PROCESS = ("running_mean", "running_var", "num_batches_tracked")
"""Endings of files that each process has for itself."""

pytestmark = pytest.mark.slow


def data_of(kind, request):
    return request.getfixturevalue("encoder_corpus") if kind == "masked_lm" else None


@pytest.fixture(scope="module", params=tiny.UPDATES)
def trained_one(request, tmp_path_factory):
    return tiny.trained(request.param, tmp_path_factory, data_of(request.param, request))


def weights(run):
    return torch.load(run / LAST, weights_only=True)["model"]


def test_checkpoints_log_curves_and_vocabulary(trained_one):
    assert list(losses(trained_one.run)) == list(range(1, trained_one.updates + 1))
    names = {path.name for path in trained_one.run.iterdir()}
    assert {LAST, "checkpoint_best.pt", "train.log", "tensorboard", "data.json"} <= names
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        if (trained_one.data / name).is_file():
            assert (trained_one.run / name).read_bytes() == (trained_one.data / name).read_bytes()
    checkpoint = read_checkpoint(trained_one.run / LAST)
    assert (checkpoint.task_name, checkpoint.updates) == (trained_one.task, trained_one.updates)


def test_the_best_on_valid_is_kept(trained_one):
    accurate = trained_one.task in ("lra", "image_classification")
    found = [
        record["valid_accuracy" if accurate else "valid_loss"]
        for record in read_log(trained_one.run / "train.log")["valid"]
    ]
    best = torch.load(trained_one.run / "checkpoint_best.pt", weights_only=True)["extra_state"]["best"]
    assert best == pytest.approx(max(found) if accurate else min(found), abs=1e-3)


def test_killed_and_resumed(trained_one, call, kill, tmp_path, capsys):
    """`kill -9` between two checkpoints: the same losses, chance included, and the same weights."""
    run = tmp_path / "run"
    words = [trained_one.config, trained_one.data, "--gpus", 0, "--save-dir", run]
    kill(trained_one.script, words, run / "train.log", '"num_updates": "7"')
    reached = read_checkpoint(run / LAST).updates
    assert 4 <= reached < trained_one.updates
    call(trained_one.script, *words)
    assert "resuming from" in capsys.readouterr().out
    expected = losses(trained_one.run)
    assert losses(run) == {n: expected[n] for n in range(reached + 1, trained_one.updates + 1)}
    for name, value in weights(trained_one.run).items():
        torch.testing.assert_close(weights(run)[name], value, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", tiny.REST)
def test_two_processes_train_what_one_with_twice_the_accumulation_trains(kind, request, tmp_path):
    made = tiny.write(kind, tmp_path / "made", data_of(kind, request))
    words = WITHOUT_CHANCE.split()
    if made.task == "lra":
        words += ["--activation-dropout", "0", "--embedding-dropout", "0"]
    master = f"127.0.0.1:{free_port()}"

    def arguments(name, machines, steps):
        extra = [*words, "--update-freq", steps]
        return fairseq_arguments(read_experiment(made.config), made.data, machines, tmp_path / name, extra)

    # Made here, in one thread: hydra and fairseq's parser know one command line at a time.
    two = [arguments("two", Machines(0, 2, rank, master), "1") for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(run_fairseq, "train", two[i], tmp_path / f"{i}.log") for i in range(2)]
    assert [one.result() for one in ended] == [None, None]
    run_fairseq("train", arguments("one", Machines(0), "2"), tmp_path / "one.log")
    both = weights(tmp_path / "two")
    for name, value in weights(tmp_path / "one").items():
        if not name.endswith(BY_PROCESS):
            torch.testing.assert_close(both[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", tiny.REST)
def test_a_dry_run_prints_the_command(kind, call, tmp_path, capsys):
    made = tiny.write(kind, tmp_path / "made", tmp_path)
    side = "decoder" if kind == "pixels" else "encoder"
    call(made.script, made.config, made.data, "--gpus", 0, "--dry-run", f"--{side}-attention", "norm")
    words = shlex.split(capsys.readouterr().out)
    arch = read_experiment(made.config).get("model", "_name")
    assert words[words.index("--arch") + 1] == arch and words[1] == str(made.data)
    run = f"tiny/{kind}" if made.task == "masked_lm" else f"tiny/{kind}/norm"
    assert words[words.index("--save-dir") + 1].endswith(f"runs/{run}")


@pytest.mark.parametrize("kind", tiny.UPDATES)
def test_the_yaml_of_another_command(kind, refused, tmp_path):
    made = tiny.write(kind, tmp_path / "made", tmp_path)
    scripts = {kind.command for kind in KINDS.values()}
    for script in scripts - {made.script, "scripts/finetune_glue.sh"}:
        assert made.script in refused(script, made.config, tmp_path, "--gpus", 0)
    assert not (tmp_path / "run").exists()


def test_a_start_from_a_model_of_another_task(trained_one, refused, trained, tmp_path):
    start = ("--finetune-from-model", trained / LAST)
    run = tmp_path / "run"
    words = (trained_one.config, trained_one.data, "--gpus", 0, "--save-dir", run, *start)
    assert str(trained / LAST) in refused(trained_one.script, *words)
    assert not run.exists()
