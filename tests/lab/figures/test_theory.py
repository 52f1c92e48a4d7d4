"""The figures that need no model: made once, drawn from JSON alone, and their verdicts."""

import itertools
import json
import shutil

import pytest
import torch

from lab.figures import analyse, theory
from lab.figures.analyse import THEORY
from lab.figures.figure import Figure
from lab.papers import statement
from lab.publish.analysis import pages
from tests.helpers import commands
from tests.helpers.once import filled_once

SMALL = ("--length", 64, "--head-dim", 8)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A folder of all figures, small; tests draw in it."""

    def fill(folder):
        commands.call(analyse, "theory", "--out", folder, *SMALL)

    drawn = filled_once(tmp_path_factory, "figures without a model", fill)
    return shutil.copytree(drawn, tmp_path_factory.mktemp("analysis") / "out")


def checks(out, name):
    record = json.loads((out / "theory" / f"{name}.json").read_text())
    return {one["statement"]: one["verdict"] == "confirmed" for one in record["checks"]}


def test_every_figure_has_json_and_png(out):
    for name in THEORY:
        record = json.loads((out / "theory" / f"{name}.json").read_text())
        assert {"settings", "panels", "note", "commit", "date", "hardware", "versions"} <= record.keys()
        points = sum(len(c["x"]) for panel in record["panels"] for c in panel.get("curves", []))
        points += sum(len(panel["groups"]) for panel in record["panels"] if panel["kind"] == "bars")
        assert points
        assert (out / "theory" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_redrawn_from_json_byte_for_byte(out, call):
    paths = [path for path in (out / "theory").iterdir() if path.suffix != ".json"]
    before = {path: path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    call(analyse, "theory", "--redraw", "--out", out)
    assert {path: path.read_bytes() for path in paths} == before


def test_finished_figures_are_skipped_and_other_settings_refused(out, call, refused, capsys):
    path = out / "theory" / "bounds.json"
    before = path.stat().st_mtime_ns
    call(analyse, "theory", "--only", "bounds", "--out", out, *SMALL)
    assert path.stat().st_mtime_ns == before
    assert "done before" in capsys.readouterr().out
    sentence = refused(analyse, "theory", "--only", "bounds", "--out", out, "--length", 32)
    assert "was made with other settings" in sentence


@pytest.mark.parametrize("name", ["score-gradients", "bounds", "temperature", "sums-of-lognormals"])
def test_statements_hold_but_for_those_known_to_be_false(out, name):
    false = {statement for statement, holds in checks(out, name).items() if not holds}
    known = {
        "bounds": {"(59): |∂L/∂s| ≤ √n c1 c2/4"},
        "temperature": {"Theorem 3.3: s₁ = |λ₂|"},
        "sums-of-lognormals": {"Fenton at σ² = 4, d = 64"},
    }
    assert false == known.get(name, set())


@pytest.mark.parametrize("elsewhere", [1, 2])
def test_an_equality_holds_at_every_temperature_or_not(elsewhere, monkeypatch):
    ratios = itertools.chain([1.0], itertools.repeat(elsewhere))
    monkeypatch.setattr(theory, "spectral_gap", lambda matrix: torch.zeros(()))
    monkeypatch.setattr(theory, "top_singular_value", lambda matrix: torch.tensor(next(ratios)))
    figure = Figure("temperature")
    theory._eigenvalues(figure, *torch.randn(2, 4, 8, dtype=torch.float64))
    assert [one["verdict"] == "confirmed" for one in figure.checks] == [elsewhere == 1]


def test_homogeneous_kernels_do_not_depend_on_the_temperature(out):
    assert checks(out, "kernels")["homogeneous kernels: H and γ against τ"]


def test_pages_show_every_figure_once(out):
    texts = pages(out)
    index, theory = texts[out / "README.md"], texts[out / "theory" / "README.md"]
    for name in THEORY:
        assert theory.count(f"({name}.png)") == 1
    assert "LLN, Fig. 2:" in theory
    assert index.count("](theory/README.md#") == len(THEORY)
    assert "| 3 of 4 | (59): \\|∂L/∂s\\| ≤ √n c1 c2/4 |" in index
    range_of_exponents = "lies between {low} and {high}; ".format(**statement("theory/moment-matching"))
    assert range_of_exponents in theory and "{low}" not in theory
    assert theory.count("c1 is the largest norm of the loss's gradient") == 1


def test_statements_of_this_project_are_marked_and_not_counted(out):
    index, theory = (pages(out)[out / folder / "README.md"] for folder in ("", "theory"))
    record = json.loads((out / "theory" / "moment-matching.json").read_text())
    ours = [one["statement"] for one in record["checks"] if one.get("ours")]
    assert ours and all(f"| (ours) {said} |" in theory for said in ours)
    [row] = [line for line in index.splitlines() if "[Moment matching]" in line]
    assert " of 2 |" in row and "Rows marked (ours)" in index


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("theory", "--only", "everything"),
            "there is no figure 'everything'; choose some of score-gradients",
        ),
        (("theory", "--length", 8), "--length 32 or more; they are 64 and 8"),
        (("theory", "--redraw", "--out", "nowhere"), "holds no JSON file to draw from"),
        (("report", "--out", "nowhere"), "holds no figure"),
        (("fly",), "invalid choice: 'fly'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x[:3])),
)
def test_user_errors(refused, words, message):
    assert message in refused(analyse, *words)
