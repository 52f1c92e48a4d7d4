"""What the measured results share: their data and their fingerprints."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.data.prepared import PreparedData, open_prepared
from pipeline.errors import UserError
from pipeline.files import ROOT, fingerprint
from pipeline.provenance import portable_command
from pipeline.training.recipe import Experiment

EVALUATED = ("valid", "test")


def corpus_of(data: PreparedData) -> dict[str, Any]:
    """What a record says about its data: the part that decides a result."""
    return {key: data.manifest.get(key) for key in ("corpus", "tokenizer", "vocabulary", "splits")}


def tokens_of(data: PreparedData) -> dict[str, Any]:
    """The same without the corpus's name: two folders with equal tokens are one corpus."""
    return {key: value for key, value in corpus_of(data).items() if key != "corpus"}


def pretraining_fingerprint(experiment: Experiment, data: PreparedData, *chosen: int) -> str:
    """That of a training: its settings, what was `chosen` besides (seed, updates), and its data."""
    return fingerprint([experiment.settings, *chosen, tokens_of(data)])


def prepare(script: str, *arguments: str | Path) -> None:
    """Run a script of data-prep/; UserError, in the script's own words, if it fails."""
    command = [str(word) for word in (ROOT / "data-prep" / script, *arguments)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    *others, last = done.stderr.splitlines(keepends=True) or [""]
    if done.returncode == 0 or not last.startswith("error: "):
        sys.stderr.write(done.stderr)
    if done.returncode == 0:
        return
    if not last.startswith("error: "):
        raise UserError("the data could not be prepared (see the reason above)")
    sys.stderr.writelines(others)
    wrong, semicolon, advice = last.removeprefix("error: ").strip().partition("; ")
    if "--" in advice:  # an option of the script's, which the command that runs it may lack
        advice = f"prepare the data with {portable_command(command)}, see its --help"
    raise UserError(f"{wrong}{semicolon}{advice}")


def prepared_wikitext2(script: str, folder: Path, source: Path | None, *options: str) -> PreparedData:
    """WikiText-2 in `folder`, prepared first if need be by `script` from `source` (or by download)."""
    if not (folder / "preparation.json").is_file():
        origin = ["--from", source.absolute()] if source else []
        prepare(script, "wikitext-2", "--dest", folder, "--tokenizer", "sentencepiece", *options, *origin)
    return open_prepared(folder, ("train", *EVALUATED))
