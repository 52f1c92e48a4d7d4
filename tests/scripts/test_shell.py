"""The shell files: syntax, help, and set-ups that cannot be."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.files import ROOT

SHELL = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("data-prep/*.sh"), ROOT / ".ci" / "run"])
COMMANDS = [path for path in SHELL if os.access(path, os.X_OK) and path.suffix]


@pytest.fixture
def fresh(tmp_path) -> Path:
    """A copy of the project without `.venv`; its path holds spaces."""
    copy = tmp_path / "a fresh copy"
    for name in ("scripts", "requirements.txt", "pyproject.toml", "setup.py", "build_kernels.py"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name)
        else:
            shutil.copy(source, copy / name)
    return copy


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [script, *arguments],
        cwd="/",
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def set_up(fresh: Path, **environment: str) -> str:
    """The sentence with which a set-up fails that needs no more than a moment."""
    done = run(fresh / "scripts" / "test.sh", "--version", **environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("path", SHELL, ids=lambda p: p.name)
def test_syntax_and_settings(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    assert "eval " not in text
    assert "set -euo pipefail" in text or not os.access(path, os.X_OK)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda p: p.name)
def test_help_needs_no_environment(path):
    done = run(path, "--help", TORCH_SPEC="torch==0.0")
    assert done.returncode == 0 and not done.stderr
    assert "usage: " in done.stdout


def test_python_that_is_missing(fresh):
    assert "PYTHON=no-such-python does not run" in set_up(fresh, PYTHON="no-such-python")
    assert not (fresh / ".venv").exists()


def test_python_of_another_version(fresh, tmp_path):
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\necho 'is Python 3.8; 3.11 or 3.12 is needed'\n")
    old.chmod(0o755)
    assert "is Python 3.8; 3.11 or 3.12 is needed" in set_up(fresh, PYTHON=str(old))


def test_no_compiler(fresh):
    assert "no-gcc not found" in set_up(fresh, PYTHON=sys.executable, CC="no-gcc")
    assert not (fresh / ".venv").exists()


def test_environment_of_somebody_else(fresh):
    (fresh / ".venv" / "bin").mkdir(parents=True)
    assert "was not made by these scripts" in set_up(fresh, PYTHON=sys.executable)
    assert (fresh / ".venv" / "bin").is_dir()


@pytest.mark.slow
def test_package_index_out_of_reach(fresh):
    """What the failed set-up leaves is cleared away by the next one."""
    unreachable = {
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "1",
    }
    for _ in range(2):
        assert "the package index cannot be reached" in set_up(fresh, **unreachable)
        assert not (fresh / ".venv" / "ready.json").exists()
