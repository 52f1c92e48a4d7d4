"""Tables and plot of the measured encoders."""

import pytest

from pipeline.files import write_json
from pipeline.methods import ENCODER_PANELS, ENCODERS, MAIN_ENCODERS
from pipeline.papers import read_table
from pipeline.reports.encoders import NOT_MEASURED, glue_section, plot_encoders, read_encoders, runs_section
from pipeline.studies.encoders import CONFIGS, all_names


def record(name: str) -> dict:
    """What measuring writes, with invented figures."""
    scores = {"accuracy": 60.0, "f1": 70.0}
    best = {metric: {"mean": value} for metric, value in scores.items()}
    task = {
        "best": {"dev": {"valid": best}},
        "majority": scores,
        "updates": 9,
        "runs": [{"learning_rate": 1e-3, "seed": 1}],
    }
    glue = {"glue": {"MRPC": task}} if name in MAIN_ENCODERS else {}
    return {
        "name": name,
        "parameters": 1234567,
        "updates": 20,
        "best_update": 10,
        "valid": {"perplexity_per_token": 101.25},
        "test": {"perplexity_per_token": 99.75},
        "tokens_per_second": 5000,
        "tokens_per_update": 2048,
        "peak_memory_bytes": 2**29,
        "train_seconds": 90,
        "curves": {"train": [(n, 8 - n / 10) for n in range(1, 21)], "valid": [(20, 6.0)]},
        "data": {
            "corpus": "wikitext-2",
            "tokenizer": "x",
            "vocabulary": 9,
            "splits": {"train": {"words": 5}},
        },
        "settings": {"model": {"encoder_layers": 4, "encoder_embed_dim": 8, "encoder_attention_heads": 2}},
        "date": "2000-01-02",
        "commit": "abc",
        "versions": {"torch": "2.13.0"},
        "hardware": {"cpu": "a CPU", "cores": 2},
        "threads": 1,
        **glue,
    }


@pytest.fixture
def runs(tmp_path):
    for name in ("bigbird", "performer", "lln", "softmax"):
        write_json(tmp_path / f"{name}.json", record(name))
    return read_encoders(tmp_path)


def test_every_configuration_is_in_the_tables_and_in_one_panel():
    assert sorted(all_names()) == sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "base")
    drawn = [name for names in ENCODER_PANELS.values() for name in names if name != "softmax"]
    assert sorted([*drawn, "softmax"]) == sorted(ENCODERS)
    for names in ENCODER_PANELS.values():
        assert len({ENCODERS[name].color for name in names}) == len(names)


def test_rows_of_the_papers_exist():
    for table, field in (("transnormer_05_glue", "transnormer"), ("lln_01_glue", "lln")):
        methods = {row["method"] for row in read_table(table)}
        ours = {getattr(encoder, field) for encoder in ENCODERS.values()} - {""}
        assert ours == methods, table


def softmax_rows():
    """The rows of the softmax encoder in TransNormer's Table 5 and in LLN's Table 1."""
    tables = read_table("transnormer_05_glue"), read_table("lln_01_glue")
    return [next(row for row in rows if row["method"] in ("Vanilla", "Softmax baseline")) for rows in tables]


def test_all_methods_stand_in_order_with_the_papers_averages(runs):
    assert [run["name"] for run in runs] == ["softmax", "lln", "performer", "bigbird"]
    text = runs_section(runs)
    averages = " | ".join(row["avg"] for row in softmax_rows())
    assert (
        f"| softmax | 101.2 / 99.8 | 1,234,567 | 20 (10) | 6.050 | 5,000 | 512 | 1.5 | {averages} |" in text
    )
    assert "| BigBird |" in text and text.splitlines()[5].endswith("| – | – |")
    assert runs_section([]) == NOT_MEASURED


def test_glue_table_has_only_what_was_fine_tuned(runs):
    text = glue_section(runs)
    transnormer, lln = softmax_rows()
    theirs = ", ".join(transnormer[task] for task in ("mrpc", "cola", "sst2"))
    own = "| softmax | 1,234,567 | 99.8 | 70.0 / 60.0 |"
    assert f"{own} {transnormer['params_m']} | {theirs} | {lln['sst2']} |" in text
    config = {row["setting"]: row["blm"] for row in read_table("transnormer_13_config")}
    assert f"TransNormer's encoders: {config['encoder_layers']} layers, width {config['hidden']}" in text
    assert f"{int(config['updates']):,} updates of " in text and "fairseq's default RoBERTa-base" in text
    assert "Performer" not in text and "the most frequent class" in text
    assert glue_section([record("bigbird")]) == NOT_MEASURED


def test_plot_is_written(runs, tmp_path):
    plot_encoders(runs, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
