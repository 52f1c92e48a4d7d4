"""Tables and curves are made from the measured results and the paper's tables, and from nothing else."""

import json
import subprocess
import sys

import pytest

from pipeline.errors import UserError
from pipeline.files import ROOT
from pipeline.reports import documents as make_results
from pipeline.reports.language_models import comparison_section, read_runs, read_table, runs_section


@pytest.fixture
def project(measured, tmp_path, monkeypatch):
    """Documents and results in a folder of their own; returns the document."""
    document = tmp_path / "README.md"
    sections = "\n".join(f"<!-- table: {name} -->\n<!-- end -->" for name in make_results.SECTIONS)
    document.write_text(f"# Prose\n\n{sections}\n\nMore prose.\n", encoding="utf-8")
    monkeypatch.setattr(make_results, "WIKITEXT2", measured)
    monkeypatch.setattr(make_results, "MEASURED", tmp_path / "none")
    monkeypatch.setattr(make_results, "CURVES", tmp_path / "curves.png")
    monkeypatch.setattr(make_results, "ROBERTA", tmp_path / "none" / "roberta")
    monkeypatch.setattr(make_results, "ROBERTA_CURVES", tmp_path / "roberta_curves.png")
    monkeypatch.setattr(make_results, "DOCUMENTS", (document, tmp_path / "missing.md"))
    return document


def test_committed_tables_are_those_of_the_committed_results():
    assert make_results.stale() == []


def test_tables_are_written_once_and_then_up_to_date(project):
    assert make_results.stale() == [project, make_results.CURVES]
    make_results.write_all()
    assert make_results.stale() == []
    text = project.read_text(encoding="utf-8")
    assert text.startswith("# Prose\n") and text.endswith("\nMore prose.\n")
    assert "![Learning curves](curves.png)" in text and "Not measured yet" in text
    assert "<!-- table: lra-accuracy-cuda -->\n\nNot measured yet; " in text
    before = project.stat().st_mtime_ns
    make_results.write_all()
    assert project.stat().st_mtime_ns == before


def test_a_new_result_makes_table_and_picture_stale(project, measured):
    make_results.write_all()
    path = measured / "transnormer_t2-seed1.json"
    run = json.loads(path.read_text())
    run["test"]["perplexity_per_word"] = 1.0
    path.write_text(json.dumps(run))
    assert make_results.stale() == [project, make_results.CURVES]


def test_a_cost_benchmark_has_its_tables_and_its_plot(project):
    measured = make_results.MEASURED
    committed = ROOT / "results" / "measured"
    measured.mkdir()
    for suffix in (".json", ".png"):
        (measured / f"lm_cost_cpu{suffix}").write_bytes((committed / f"lm_cost_cpu{suffix}").read_bytes())
    make_results.write_all()
    text = project.read_text(encoding="utf-8")
    assert "Tokens per second" in text and "![Time and memory against length](none/lm_cost_cpu.png)" in text
    assert "Not measured yet; `benchmarks/roberta_cost.py` measures it." in text


def test_an_edited_table_is_noticed(project):
    make_results.write_all()
    text = project.read_text(encoding="utf-8")
    project.write_text(text.replace("305.00", "205.00"), encoding="utf-8")
    assert make_results.stale() == [project]


def test_unknown_table_is_a_users_error(project):
    project.write_text("<!-- table: nonsense -->\n<!-- end -->", encoding="utf-8")
    with pytest.raises(UserError, match="asks for table nonsense"):
        make_results.write_all()


def test_paper_and_measurement_stand_side_by_side(measured):
    text = comparison_section(read_runs(measured))
    rows = {row["method"]: row for row in read_table("transnormer_04_wikitext103_lm")}
    t1 = rows["TransNormer T1"]
    published = f"{t1['ppl_val']} / {t1['ppl_test']} ({t1['params_m']})"
    own = "305.00 [seeds: 300.00, 310.00] / 315.00 [seeds: 310.00, 320.00] (1.23)"
    assert f"| {published} | {own} |" in text
    config = {row["setting"]: row["alm"] for row in read_table("transnormer_13_config")}
    size = ", ".join(config[key] for key in ("decoder_layers", "hidden", "heads"))
    assert "| WikiText-103 | wikitext-2 |" in text and f"| {int(config['vocabulary']):,} | 4,000 |" in text
    assert f"| {size} | 4, 192, 4 |" in text and " | 256, 2,048 |" in text
    assert f"| {float(config['peak_lr']):g}, {config['scheduler']}, " in text
    assert " | 0.002, cosine, 150 |" in text and f"| {config['hidden_dropout']}, none | 0, 1 |" in text
    assert "vanilla < TransNormer T1 < TransNormer T2 < 1+elu |" in text
    assert "vanilla = TransNormer T2" in text  # their test perplexities in the paper are equal


def test_settings_that_differ_between_runs_are_shown(measured):
    runs = read_runs(measured)
    runs[0]["updates"] = 1000
    assert "| 1,000 or 900 |" in comparison_section(runs)


def test_every_run_is_a_row(measured):
    text = runs_section(read_runs(measured))
    assert "| TransNormer T1, 2 | 1,234,567 | 900 (600) | 8.500 | 20.00, 310.00 |" in text
    assert "| 5,432 | 1,024 | 1.5 |" in text
    assert text.count("Measured on a CPU, 2 threads, torch 2.13.0, 2000-01-02, commit abc.") == 1


def test_without_measurements_the_section_says_so(tmp_path):
    assert "Not measured yet" in comparison_section(read_runs(tmp_path))
    assert "Not measured yet" in runs_section([])


def test_command_line():
    command = [sys.executable, "-m", "pipeline", "reports.documents"]
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--check" in text
    wrong = subprocess.run([*command, "--nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 1 and len(wrong.stderr.strip().splitlines()) == 1
