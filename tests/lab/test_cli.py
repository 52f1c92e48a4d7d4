"""The one command: its verbs, the scripts that stand for some, and the names of earlier releases."""

import re
import sys

import pytest

from lab.cli import COMMANDS, LAB, OLD, SCRIPTS, find, list_commands, main, name_of
from lab.errors import UserError
from lab.files import ROOT
from lab.provenance import environment


def test_every_script_stands_for_a_verb_and_every_old_name_is_a_link():
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("data-prep/*.sh")]
    calls = re.compile(r"^ *run_command ", re.MULTILINE)
    found = {str(path.relative_to(ROOT)): path for path in scripts if calls.search(path.read_text())}
    assert {name for name, path in found.items() if not path.is_symlink()} == {*SCRIPTS, LAB}
    assert {name for name, path in found.items() if path.is_symlink()} == set(OLD)
    assert all(found[name].resolve() == ROOT / LAB for name in OLD)


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
        ("check", "what to check: gpu, faults, sources"),
    ):
        with pytest.raises(UserError, match=sentence):
            find(wrong.split())


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("scripts/quickstart.sh", "scripts/quickstart.sh"),
        ("prepare images", "data-prep/images.sh"),
        ("scripts/lab.sh check gpu", "scripts/lab.sh check gpu"),
        ("scripts/train_vit.sh", "scripts/lab.sh train vit"),
    ],
)
def test_a_record_names_the_command_of_today(typed, name, monkeypatch):
    recorded = []
    monkeypatch.setattr("importlib.import_module", lambda module: Recorder(module, recorded))
    monkeypatch.setattr(sys, "argv", ["lab", *typed.split(), "--out", "a b"])
    main()
    [command] = [command for words, command in COMMANDS.items() if name_of(words) == name]
    assert recorded == [(f"lab.{command.module}", [command.kind][: len(command.kind)], f"{name} --out 'a b'")]


class Recorder:
    """In place of a command's module."""

    def __init__(self, module: str, recorded: list[tuple[str, list[str], str]]) -> None:
        self.module, self.recorded = module, recorded

    def main(self, *kind: str) -> None:
        self.recorded.append((self.module, [*kind], environment("cpu")["command"]))
