"""Command lines: flags of others, folders by either name, mistakes in one sentence."""

import os
import signal

import pytest

from benchmarks.operator_cost import parse_arguments
from pipeline.commands.studies import finetune_glue, gpu_check, quickstart, run_ablations
from pipeline.commands.training import train_lm
from pipeline.console import number_of, out_dir, run_command, runs_failed
from pipeline.errors import UserError


def test_unknown_flags_are_left_for_fairseq():
    words = ["c.yaml", "data", "--arch", "x", "--gpus", "2", "--bf16"]
    options, extra = train_lm.parse(words)
    assert (str(options.config), str(options.data), options.gpus) == ("c.yaml", "data", 2)
    assert extra == ["--arch", "x", "--bf16"]
    options, extra = run_ablations.parse(["all", "--max-update", "3"])
    assert options.which == "all" and extra == ["--max-update", "3"]


def test_help_among_flags_of_others(capsys):
    with pytest.raises(SystemExit):
        train_lm.parse(["c.yaml", "--arch", "x", "--help"])
    text = capsys.readouterr().out
    assert "usage: scripts/train_lm.sh CONFIG [DATA]" in text and "--save-dir DIR" in text


def test_mistakes_name_the_help():
    with pytest.raises(UserError, match=r"required: CONFIG; see scripts/train_lm.sh --help"):
        train_lm.parse(["--gpus", "2"])
    with pytest.raises(UserError, match=r"unrecognized arguments: third"):
        train_lm.parse(["c.yaml", "data", "third", "--arch", "x"])
    with pytest.raises(UserError, match=r"'-1' is not one or several numbers above 0"):
        finetune_glue.parse(["c.pt", "--learning-rates=-1"])


@pytest.mark.parametrize("words", [["DIR", "--device", "cpu"], ["--device", "cpu", "DIR"], ["--out", "DIR"]])
def test_a_folder_with_or_without_its_flag(words):
    assert str(out_dir(parse_arguments(words))) == "DIR"
    if "--device" not in words:
        assert str(gpu_check.parse(words).out) == "DIR"


def test_both_names_of_the_quickstarts_folder(tmp_path):
    assert quickstart.parse(["--runs", str(tmp_path)]).runs == tmp_path
    assert quickstart.parse(["--out", str(tmp_path)]).runs == tmp_path


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 75)]
)
def test_a_stopped_command_cleans_up_and_ends_with_the_signals_code(number, code):
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def main():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit) as ended:
        run_command(main)
    assert ended.value.code == code and cleaned
    assert signal.getsignal(signal.SIGTERM) is before


def test_numbers_of_things():
    assert [number_of(n, "runs") for n in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]
    assert str(runs_failed(["a"], every=True)) == "1 run failed; the first: a"
    assert str(runs_failed(["a", "b"], every=True)) == "all 2 runs failed; the first: a"
