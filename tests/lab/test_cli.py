"""The one command: its verbs, the scripts that stand for some, and the names of earlier releases."""

import re
import subprocess
import sys

import pytest

from lab.cli import COMMANDS, LAB, OLD, SCRIPTS, Command, find, list_commands, main, name_of
from lab.errors import UserError
from lab.files import ROOT
from lab.provenance import environment


def test_every_script_stands_for_a_verb_and_every_old_name_is_a_link():
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("data-prep/*.sh")]
    calls = re.compile(r"^ *run_command ", re.MULTILINE)
    found = {str(path.relative_to(ROOT)): path for path in scripts if calls.search(path.read_text())}
    assert {name for name, path in found.items() if not path.is_symlink()} == {*SCRIPTS, LAB}
    links = {name for name, path in found.items() if path.is_symlink()}
    assert links >= set(OLD) and all(found[name].resolve() == ROOT / LAB for name in links)


def test_every_verb_is_in_the_table_of_commands_with_the_same_words():
    table = (ROOT / "docs" / "commands.md").read_text()
    for words, command in COMMANDS.items():
        assert f"| `{name_of(words)}` | {command.about}" in table


def test_verbs_find_their_commands(capsys):
    assert find([LAB, "evaluate", "mlm", "a.pt"]) == find(["evaluate", "mlm", "a.pt"])
    assert find(["scripts/train_lm.sh", "c.yaml"]) == ("train lm", ["c.yaml"]) and not capsys.readouterr().err
    assert find(["scripts/eval_mlm.sh", "a.pt"]) == ("evaluate mlm", ["a.pt"])
    assert capsys.readouterr().err.startswith("scripts/eval_mlm.sh is now scripts/lab.sh evaluate mlm;")
    assert find([LAB]) == find([]) == find(["--help"]) == ("", [])
    assert find(["check", "-h"]) == ("", ["check"])
    assert "train lm" in list_commands("train") and "export" not in list_commands("train")
    for wrong, sentence in (
        ("trian lm", "no verb trian; did you mean train"),
        ("evaluate", "what to evaluate: ppl, mlm, lra, images"),
    ):
        with pytest.raises(UserError, match=sentence):
            find(wrong.split())


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("scripts/quickstart.sh", "scripts/quickstart.sh"),
        ("prepare images", "data-prep/images.sh"),
        ("scripts/lab.sh evaluate lra", "scripts/lab.sh evaluate lra"),
        ("scripts/train_vit.sh", "scripts/lab.sh train vit"),
    ],
)
def test_a_record_names_the_command_of_today(typed, name, monkeypatch):
    recorded = []
    monkeypatch.setattr(Command, "parse", lambda command, words: words)
    monkeypatch.setattr("lab.cli.import_quickly", lambda module: Recorder(module, recorded))
    monkeypatch.setattr(sys, "argv", ["lab", *typed.split(), "--out", "a b"])
    main()
    [command] = [command for words, command in COMMANDS.items() if name_of(words) == name]
    assert recorded == [(f"lab.{command.module}", ["--out", "a b"], f"{name} --out 'a b'")]


class Recorder:
    """In place of a command's module."""

    def __init__(self, module: str, recorded: list[tuple[str, list[str], str]]) -> None:
        self.module, self.recorded = module, recorded

    def main(self, options: list[str]) -> None:
        self.recorded.append((self.module, options, environment("cpu")["command"]))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        *((verb, True) for verb in ("average", "finetune", "results", "prepare text", "train lm")),
        *((verb, False) for verb in ("check sources", "report", "figures", "study")),
    ],
)
def test_a_terminal_is_told_of_the_seconds_that_an_import_takes(typed, says, monkeypatch, capsys):
    monkeypatch.setattr(Command, "parse", lambda command, words: words)
    monkeypatch.setattr("lab.cli.import_quickly", lambda module: Recorder(module, []))
    monkeypatch.setattr(sys, "argv", ["lab", *typed.split()])
    main()
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "argv", ["lab", *typed.split()])
    main()
    assert capsys.readouterr().err == ("loading torch and fairseq ...\n" if says else "")


def test_quick_commands_are_those_whose_module_needs_neither_torch_nor_fairseq():
    program = (
        "import sys\nfrom importlib import import_module\nfrom lab.cli import COMMANDS\n"
        "sys.modules |= {'torch': None, 'fairseq': None}\n"
        "for name, command in COMMANDS.items():\n"
        "    try:\n        import_module(f'lab.{command.module}')\n"
        "    except ModuleNotFoundError:\n        assert not command.quick, name\n"
        "    else:\n        assert command.quick, name\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_help_imports_neither_torch_nor_fairseq():
    """One process for all verbs: each would only import more."""
    program = (
        "import sys\nfrom lab.cli import COMMANDS\n"
        "for name, command in COMMANDS.items():\n"
        "    try:\n        command.parse(['--help'])\n"
        "    except SystemExit:\n"
        "        loaded = sorted({'torch', 'fairseq'} & set(sys.modules))\n"
        "        assert not loaded, (name, loaded)\n"
        "    else:\n        raise AssertionError(name)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
