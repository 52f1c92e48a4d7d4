"""Scripts and the modules behind them."""

import re
import subprocess
import sys

import pytest

from lab.__main__ import MODULES, main
from lab.files import ROOT
from lab.provenance import environment


def test_every_script_has_its_module():
    scripts = [*ROOT.glob("scripts/*.sh"), *ROOT.glob("data-prep/*.sh")]
    calls = re.compile(r"^(run|exec)_command ", re.MULTILINE)
    found = {str(path.relative_to(ROOT)) for path in scripts if calls.search(path.read_text())}
    assert found == set(MODULES)


def test_commands_read_their_options_with_the_standard_library_alone():
    """--help works before .venv is there."""
    lines = [f"import lab.{module} as module; assert module.main" for module in sorted(set(MODULES.values()))]
    command = [sys.executable, "-S", "-c", "\n".join(lines)]  # -S: no packages
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["scripts/quickstart.sh", "data-prep/images.sh", "scripts/gpu_check.sh"])
def test_a_record_names_the_script(name, monkeypatch):
    recorded = []
    monkeypatch.setattr("importlib.import_module", lambda module: Recorder(module, recorded))
    monkeypatch.setattr(sys, "argv", ["lab", name, "--out", "x"])
    main()
    assert recorded == [(f"lab.{MODULES[name]}", f"{name} --out x")]


class Recorder:
    """In place of a command's module."""

    def __init__(self, module: str, recorded: list[tuple[str, str]]) -> None:
        self.module, self.recorded = module, recorded

    def main(self) -> None:
        self.recorded.append((self.module, environment("cpu")["command"]))
