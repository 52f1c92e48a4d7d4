"""The table of Long Range Arena: means, averages, the papers' rows of the same pipeline."""

import pytest

from pipeline.errors import UserError
from pipeline.papers import read_table
from pipeline.reports.lra import FIVE, OWN_RUNS, PRESET_SIZE, averages, paper_rows, write_table
from user_dir.models.lra.presets import SIZE

MACHINE = {"hardware": {"cpu": "a CPU"}, "threads": 2, "date": "2000-01-02", "commit": "abc"}


def cell(task: str, attention: str, seed: int, accuracy: float, **other: object) -> dict:
    """The result of a run."""
    data = {"task": task, "origin": "published", "seed": None, "examples": {"train": 9000, "test": 10}}
    about = {"preset": "lra_skyformer", "steps": 50_000, "flags": [], "published_sizes": True}
    about |= {"parameters": 1000, "chosen_on_valid": True, "data": data, "environment": MACHINE}
    return {**about, "task": task, "attention": attention, "seed": seed, "accuracy": accuracy, **other}


def test_means_spread_and_average():
    cells = [
        cell(task, "elu", seed, 50 + number + seed) for number, task in enumerate(FIVE) for seed in (1, 2, 3)
    ]
    cells += [cell("text", "lln_diag", 1, 12.5)]
    table = write_table(cells)
    row = "| 1+elu, here | 2 × 64; 1,000 parameters | 52.00 (51.00 to 53.00) | 53.00 (52.00 to 54.00) "
    assert row in table and "| 54.00 (53.00 to 55.00) |\n" in table
    assert averages(cells, "elu") == {1: 53.0, 2: 54.0, 3: 55.0} and averages(cells, "lln_diag") == {}
    assert "| LLN+Diag, here | 2 × 64; 1,000 parameters | 12.50 [1 of 3 seeds] | – | – | – | – | – |" in table
    assert "seeds 1, 2, 3" in table and "published data (9,000 train / 10 test), 50,000 updates" in table
    assert "*" not in table


@pytest.mark.parametrize("preset", ["lra_skyformer", "lra_state_space"])
def test_the_papers_rows_of_its_pipeline_only(preset):
    table = write_table([cell(task, "elu", 1, 50.0, preset=preset) for task in FIVE])
    rows = {row["model"]: row for row in read_table("transnormer_06_lra")}
    assert set(OWN_RUNS) < set(rows)
    for name, row in rows.items():
        shown = any(line.startswith(f"| {name} (") and "TransNormer" in line for line in table.splitlines())
        assert shown == ((name in OWN_RUNS) == (preset == "lra_state_space"))
        if shown:
            assert f"| {' | '.join(row[column] for column in (*FIVE, 'avg'))} |\n" in table
    assert ("LLN, Table 5" in table) == (preset == "lra_skyformer")


def test_tasks_without_one_of_the_five_have_no_average():
    table = write_table([cell("text", "elu", 1, 50.0)])
    assert table.startswith("|  | layers × width | Text |\n") and "parameters | 50.00 |\n" in table
    table = write_table([cell(task, "elu", 1, 50.0) for task in FIVE[1:]])
    assert "average" not in table and "parameters | 50.00 | 50.00 | 50.00 | 50.00 |\n" in table


def test_every_row_of_the_papers_is_in_one_pipeline():
    both = [*paper_rows("lra_skyformer"), *paper_rows("lra_state_space")]
    assert len(both) == len(read_table("transnormer_06_lra")) + len(read_table("lln_05_lra"))


def test_small_settings_are_marked():
    data = {"origin": "generated", "seed": 42, "examples": {"train": 400}, "close_brackets": True}
    small = {"flags": ["--max-update", "100"], "steps": 100, "data": data}
    table = write_table([cell("listops", "elu", 1, 50.0, **small), cell("text", "elu", 1, 50.0)])
    assert "| Text | ListOps* |\n" in table and "* ListOps: not the papers' setting" in table
    assert "generated data (400 train, data seed 42), 100 updates, --max-update 100; best on valid" in table
    assert "ListOps has no `]` in Skyformer's data" in table


def test_every_row_says_its_size():
    assert (SIZE["encoder_layers"], SIZE["encoder_embed_dim"]) == PRESET_SIZE
    flags = ["--encoder-layers", "4", "--encoder-embed-dim", "128"]
    sizes = [("text", 370_562), ("image", 158_602)]
    cells = [cell(task, "elu", 1, 50.0, parameters=count, flags=flags) for task, count in sizes]
    table = write_table(cells)
    assert "| 1+elu, here | 4 × 128; 158,602 to 370,562 parameters | 50.00 | 50.00 |\n" in table
    assert "| Performer (Skyformer's, in TransNormer, Table 6) | 2 × 64 | " in table
    assert "| Performer (LLN, Table 5) | – | " in table and "LLN's Table 5 does not say its sizes" in table
    table = write_table([cell("text", "elu", 1, 50.0, preset="lra_state_space")])
    assert "| FLASH (TransNormer, Table 6) | 5 to 12 × 64 to 512 | " in table
    assert "| TransNormer T1 (TransNormer, Table 6) | 2 × 64 | " in table
    assert "no comparison at equal size" in table


def test_the_form_of_performer_is_named():
    assert "Performer here" not in write_table([cell("text", "elu", 1, 50.0)])
    table = write_table([cell("text", "performer", 1, 50.0)])
    assert "Performer here is in performer-pytorch's form" in table and "figures are of other forms" in table
    table = write_table([cell("text", "performer", 1, 50.0, flags=["--performer-paper"])])
    assert "Performer here is in the form of TransNormer's runs (--performer-paper)." in table


def test_what_cannot_share_a_table():
    with pytest.raises(UserError, match="runs of lra_skyformer and lra_state_space cannot share a table"):
        write_table([cell("text", "elu", 1, 50.0), cell("text", "lln", 1, 50.0, preset="lra_state_space")])
    with pytest.raises(UserError, match="runs on text differ in flags, updates or data"):
        write_table([cell("text", "elu", 1, 50.0), cell("text", "lln", 1, 50.0, steps=100)])
