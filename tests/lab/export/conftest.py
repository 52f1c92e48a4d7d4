"""Exported models, and their use in transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lab.files import ROOT

ENVIRONMENT = ROOT / ".venv-export"


@pytest.fixture(scope="session")
def with_transformers():
    """Calls a function of `outside.py` where transformers is: `(name, folder, arguments...)`."""
    if not (ENVIRONMENT / "transformers").is_dir():
        pytest.skip("transformers is not installed; scripts/test_export.sh installs it")

    def run(name: str, folder: Path, *arguments: object) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ENVIRONMENT),
            "PYTHONSAFEPATH": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "cache"),  # where transformers copies modelling files
        }
        script = Path(__file__).with_name("outside.py")
        command = [sys.executable, *map(str, (script, name, folder, *arguments))]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]

    return run


@pytest.fixture(scope="session")
def transformers_answers(with_transformers):
    """The `answer` of `outside.py`: `(folder, questions) -> answers`."""

    def ask(folder: Path, questions: dict) -> dict:
        torch.save(questions, folder / "questions.pt")
        with_transformers("answer", folder)
        return torch.load(folder / "answers.pt", weights_only=True)

    return ask
