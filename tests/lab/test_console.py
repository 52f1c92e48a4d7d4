"""Command lines: flags of others, folders by either name, mistakes in one sentence."""

import os
import runpy
import signal
import subprocess
import sys

import pytest

from benchmarks.operator_cost import parse_arguments
from lab.children import was_interrupted
from lab.commands import quickstart
from lab.console import number_of, out_dir, parse_before_flags, run_command
from lab.errors import UserError
from lab.options import train
from lab.run.process import check_end

TRAIN_LM = "scripts/train_lm.sh"


def parse(kind, words):
    return parse_before_flags(*train.training_parser(kind), words)


def test_unknown_flags_are_left_for_fairseq():
    words = ["c.yaml", "data", "--arch", "x", "--gpus", "2", "--bf16"]
    options = parse("lm", words)
    assert (str(options.config), str(options.data), options.gpus) == ("c.yaml", "data", 2)
    assert options.flags == ["--arch", "x", "--bf16"]
    options = parse("vit", ["c.yaml", "--max-update", "3"])
    assert options.data is None and options.flags == ["--max-update", "3"]


def test_help_among_flags_of_others(capsys):
    with pytest.raises(SystemExit):
        parse("lm", ["c.yaml", "--arch", "x", "--help"])
    text = capsys.readouterr().out
    assert "usage: scripts/train_lm.sh CONFIG [DATA]" in text and "--save-dir DIR" in text


def test_mistakes_name_the_help():
    with pytest.raises(UserError, match=r"required: CONFIG; see scripts/train_lm.sh --help"):
        parse("lm", ["--gpus", "2"])
    with pytest.raises(UserError, match=r"unrecognized arguments: third"):
        parse("lm", ["c.yaml", "data", "third", "--arch", "x"])
    with pytest.raises(UserError, match=r"'-1' is not one or several numbers above 0"):
        train.finetuning(["c.pt", "--learning-rates=-1"])


@pytest.mark.parametrize(
    "words", ["--gpus 8 c.yaml", "--arch x c.yaml data", "c.yaml --gpus 8 data", "--fresh c.yaml --arch x"]
)
def test_files_behind_an_option_are_shown_their_place(words):
    usage = r"scripts/train_lm.sh CONFIG \[DATA\] \[options\]"
    with pytest.raises(UserError, match=f"files and folders come before all options: {usage}"):
        parse("lm", words.split())


@pytest.mark.parametrize("words", [["DIR", "--device", "cpu"], ["--device", "cpu", "DIR"], ["--out", "DIR"]])
def test_a_folder_with_or_without_its_flag(words):
    assert str(out_dir(parse_arguments(words))) == "DIR"


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


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (UserError("no"), "error: no")])
def test_a_command_interrupted_while_it_is_imported_ends_as_any(raised, code, monkeypatch, capsys):
    def importing(name):
        raise raised

    monkeypatch.setattr("importlib.import_module", importing)
    monkeypatch.setattr(sys, "argv", ["lab", "average", "--inputs", "a.pt", "--output", "b.pt"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("lab", run_name="__main__")
    assert ended.value.code == code and "Traceback" not in capsys.readouterr().err


def test_an_interruption_says_what_it_knows(capsys):
    def main():
        raise KeyboardInterrupt("the same command resumes after update 7")

    with pytest.raises(SystemExit):
        run_command(main)
    assert capsys.readouterr().err == "error: interrupted; the same command resumes after update 7\n"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_one_sentence(error):
    def main():
        raise error

    with pytest.raises(SystemExit, match="error: the memory is full; lower --batch-size"):
        run_command(main)


def test_an_interruption_while_text_is_executed_ends_what_was_started(tmp_path):
    (tmp_path / "imports.py").write_text(
        "try:\n    exec('raise KeyboardInterrupt')\nexcept KeyboardInterrupt:\n    raise SystemExit(130)\n"
    )
    code = subprocess.run([sys.executable, "-m", "imports"], cwd=tmp_path).returncode
    assert was_interrupted(code), code
    with pytest.raises(KeyboardInterrupt):
        check_end("train", [0, code], None, tmp_path / "train.log")


def test_an_empty_name_is_no_file():
    with pytest.raises(UserError, match="--out.*: it is empty"):
        quickstart.parse(["--out", ""])


def test_numbers_of_things():
    assert [number_of(n, "runs") for n in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_a_letter_that_the_locale_lacks_is_escaped(root):
    done = subprocess.run(
        [sys.executable, "-m", "lab", "prepare", "glue", "--help"],
        cwd=root,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert done.returncode == 0 and b"\\u" in done.stdout, done.stderr
