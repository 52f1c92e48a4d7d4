"""Mistakes on the command lines of fairseq's own programs end in one line that names the option."""

import sys

import pytest

from tests.helpers import forked

# Each is added to a training command that works; what the last line must say.
TRAINING = {
    "no process": (["--distributed-world-size", "0"], "--distributed-world-size"),
    "no such checkpoint": (["--restore-file", "nowhere.pt"], "--restore-file"),
    "no such model": (["--finetune-from-model", "nowhere.pt"], "--finetune-from-model"),
    "learns nothing": (["--lr", "0"], "--lr"),
    "negative norm": (["--clip-norm", "-1"], "--clip-norm"),
    "never saves": (["--save-interval", "0"], "--save-interval"),
    "saves before the start": (["--save-interval-updates", "-4"], "--save-interval-updates"),
    "never validates": (["--validate-interval", "0"], "--validate-interval"),
    "a valid split is missing": (["--valid-subset", "valid,foo"], "--valid-subset"),
    "the train split is missing": (["--train-subset", "trian"], "--train-subset"),
    "unknown metric": (["--best-checkpoint-metric", "bleu"], "--best-checkpoint-metric"),
    "empty plan": (["--decoder-attention", ""], "--decoder-attention"),
    "samples are too long": (["--batch-size", "8", "--max-tokens", "4"], "--max-tokens"),
    "unwritable folder": (["--save-dir", "/proc/x"], "--save-dir"),
    "amp needs a GPU": (["--amp"], "--amp"),
    "nearest architectures": (["--arch", "transnormer_t3"], "transnormer_t1"),
    "another architecture's option": (["--arch", "transformer_lm_gpt"], "--decoder-norm"),
    "mistyped option": (["--decoder-layer", "2"], "--decoder-layers"),
}
EVALUATION = {
    "no checkpoint": ("eval_lm", ["--path"], "--path"),
    "negative context": ("eval_lm", ["--context-window", "-3"], "--context-window"),
    "no such split": ("eval_lm", ["--gen-subset", "dev"], "--gen-subset"),
    "negative prefix": ("generate", ["--prefix-size", "-5"], "--prefix-size"),
    "no probability": ("generate", ["--sampling", "--sampling-topp", "2"], "--sampling-topp"),
    "no hypothesis": ("generate", ["--beam", "0"], "--beam"),
    "no length": ("generate", ["--max-len-b", "0"], "--max-len-b"),
    "no task": ("generate", ["--task"], "--task"),
    "nothing to read": ("interactive", ["--input", "empty"], "--input"),
}


def check(command: list[str], said: str, cwd) -> None:
    done = forked.run(command, cwd=cwd)
    lines = (done.stdout + done.stderr).strip().splitlines()
    assert done.returncode == 1, "\n".join(lines[-20:])
    assert lines[-1].startswith("error: ") and said in lines[-1], "\n".join(lines[-20:])
    assert not any(line.startswith("Traceback") or "hydra/" in line for line in lines)


@pytest.mark.parametrize("mistake", TRAINING)
def test_training(mistake, commands, tmp_path):
    words, said = TRAINING[mistake]
    words = [*words, "--decoder-norm", "rmsnorm"] if "option" in mistake else words
    command = commands.train(tmp_path / "run", "--max-update", "1", *words)
    check(command, said, tmp_path)
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


def test_a_file_in_place_of_the_data(commands, tmp_path):
    command = commands.train(tmp_path / "run")
    command[command.index(str(commands.data))] = str(commands.data / "dict.txt")
    check(command, "DATA", tmp_path)


@pytest.mark.parametrize("mistake", EVALUATION)
def test_evaluation(mistake, commands, trained, tmp_path):
    program, words, said = EVALUATION[mistake]
    (tmp_path / "empty").touch()
    options = {
        "--path": str(trained[0] / "checkpoint_last.pt"),
        "--task": "language_modeling",
        "--user-dir": str(commands.root / "user_dir"),
        "--batch-size": "1",
    }
    if len(words) == 1:
        del options[words[0]]
        words = []
    words = [str(tmp_path / "empty") if "empty" in word else word for word in words]
    given = [word for option in options.items() for word in option]
    command = [sys.executable, "-m", f"fairseq_cli.{program}", str(commands.data), *given, "--cpu", *words]
    check(command, said, tmp_path)
