"""A tiny study on the copy task, and records with made-up figures."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from omegaconf import OmegaConf

from lab.files import ROOT, fingerprint, write_json
from lab.study.cells import Cell, Plan, cells_of
from lab.study.declaration import read_study
from lab.study.schema import Study

STUDY = """
about: A tiny study
config: configs/copy/{preset}.yaml
axes:
  preset: [tiny]
  method:
    softmax: {plan: softmax}
    elu: {plan: elu}
    norm-t1: {plan: norm}
    norm-t2: {plan: norm, norm_feature_map: 1+elu}
seeds: 1
evaluate: copy
table:
  rows: method
  columns:
    - ["loss, nats", loss_nats, ".4f"]
    - ["exact match, %", 100*exact, ".1f"]
    - [converged, converged, count]
baseline: {name: guessing, found: {loss_nats: 2.3}, margin: {loss_nats: -0.01}}
claims:
  - {says: "linear is as good", where: Figure 2, test: {ratio: [loss_nats, elu, softmax], at_most: 1.1}}
plot: {curves: train, y: loss}
notes: "{{updates}} updates, {{over_seeds}}{{flags}}."
"""
DOCUMENTED = re.search(r"```yaml\n(.*?)```", (ROOT / "docs" / "studies.md").read_text("utf-8"), re.DOTALL)[1]
"""The study that the documents show."""
SHORT = ("--train-samples", "160", "--eval-samples", "40", "--log-interval", "1", "--max-update", "4")
"""Flags of fairseq-train with which a cell takes a second."""


@pytest.fixture
def study_file(tmp_path) -> Path:
    """The YAML of the tiny study."""
    path = tmp_path / "tiny.yaml"
    path.write_text(dedent(STUDY))
    return path


@pytest.fixture
def study_with(study_file) -> Callable[..., Study]:
    """The tiny study with these keys in place of its own, or besides."""

    def read(**keys: Any) -> Study:
        content = OmegaConf.to_container(OmegaConf.load(study_file))
        OmegaConf.save(OmegaConf.create({**content, **keys}), study_file)
        return read_study(study_file)

    return read


def record_of(cell: dict, found: dict, **others: object) -> dict:
    """A made-up record of a cell in which `found` was measured; `others` are further entries."""
    return {
        "study": "tiny",
        "cell": cell,
        "fingerprint": fingerprint([{"model": {}}, []]),
        "settings": {"model": {}},
        "own_flags": [],
        "flags": [],
        "data": None,
        "training": {"updates": 4, "seconds": 2.0, "curves": {}},
        "found": found,
        "environment": {"commit": "abc", "date": "2000-01-02", "threads": 2, "hardware": {"cpu": "a CPU"}},
        **others,
    }


def made_up(method: str, seed: int, **found: float) -> dict:
    """A record of the tiny study, with a curve."""
    training = {"updates": 4, "seconds": 2.0, "curves": {"train": [[1, 3.0], [2, 2.0]]}}
    return record_of({"preset": "tiny", "method": method, "seed": seed}, found, training=training)


def write_record(cell: Cell, record: dict) -> None:
    """Write a made-up record in the place of a cell, with the settings that its study gives it now."""
    about = {
        "study": cell.study.name,
        "cell": cell.key,
        "settings": cell.experiment.settings,
        "own_flags": cell.own_flags(),
        "fingerprint": cell.fingerprint(),
    }
    write_json(cell.record_path, {**record, **about})


def cells(
    study: Study,
    asked: Mapping[str, Sequence[str]] | None = None,
    seeds: int = 1,
    *,
    out: Path = ROOT / "runs" / "x",
    data: Path | None = None,
    flags: Sequence[str] = (),
    start: Path | None = None,
) -> list[Cell]:
    """The cells that a command with these choices and options asks for."""
    return cells_of(Plan(study, out, data, tuple(flags), start), asked or {}, seeds)


def glue_cell(start: Path | None, data: Path, rate: str = "0.01", **options: Any) -> Cell:
    """A run of fine-tuning on RTE."""
    [cell] = cells(read_study("glue"), {"task": ["RTE"], "lr": [rate]}, data=data, start=start, **options)
    return cell
