"""Mistakes on the command lines of fairseq's own programs end in one line that names the option.

Here as whole programs; the table of mistakes is in tests/lab/mistakes.py.
"""

import sys

import pytest
import yaml

from tests.helpers import forked


def check(command: list[str], said: str, cwd) -> None:
    done = forked.run(command, cwd=cwd)
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == 1, "\n".join(lines[-20:])
    assert lines[-1].startswith("error: ") and said in lines[-1], "\n".join(lines[-20:])
    assert not any(line.startswith("Traceback") or "hydra/" in line for line in lines)


def test_training(commands, tmp_path):
    check(commands.train(tmp_path / "run", "--decoder-layer", "2"), "--decoder-layers", tmp_path)
    assert not list(tmp_path.rglob("*.pt"))


def test_a_warm_up_beyond_the_end_is_noted(commands, tmp_path):
    """It is meant where a long recipe is tried for a few updates."""
    words = ("--max-update", "1", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "5")
    output = commands.run(*commands.train(tmp_path, *words))
    assert sum("--warmup-updates is 5" in line for line in output.splitlines()) == 1


def test_no_architecture(commands, tmp_path):
    command = commands.train(tmp_path / "run")
    at = command.index("--arch")
    without = command[:at] + command[at + 2 :]
    check(without, "--arch", tmp_path)
    assert "--arch" in commands.run(*without, "--help")


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        ("eval_lm", ["--context-window", "-3"], "--context-window"),
        ("generate", ["--task", "language_modeling", "--beam", "0"], "--beam"),
    ],
)
def test_evaluation(program, words, said, commands, trained, tmp_path):
    command = [sys.executable, "-m", f"fairseq_cli.{program}", commands.data, "--cpu", "--batch-size", "1"]
    command += ["--user-dir", commands.root / "user_dir", "--path", trained[0] / "checkpoint_last.pt"]
    check([*map(str, command), *words], said, tmp_path)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("transnormer_t17", "unknown model 'transnormer_t17'; the nearest are transnormer_t1"),
        (
            "lra_skyformer",
            "lra_skyformer is a classifier of Long Range Arena, which --task language_modeling",
        ),
    ],
)
def test_the_model_of_a_yaml(model, said, commands, tmp_path):
    settings = {
        "common": {"user_dir": str(commands.root / "user_dir"), "cpu": True},
        "model": {"_name": model},
        "task": {"_name": "language_modeling", "data": str(commands.data)},
        "criterion": {"_name": "cross_entropy"},
        "dataset": {"batch_size": 2},
        "checkpoint": {"save_dir": str(tmp_path / "run")},
    }
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", str(tmp_path)]
    check([*command, "--config-name", "wrong"], said, tmp_path)
