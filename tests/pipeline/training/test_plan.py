"""train_lm.sh --plan: what a run takes, from its log, from its first updates, or without either."""

from argparse import Namespace

import pytest

from pipeline.papers import read_table
from pipeline.training.train import Pace, pace_of, plan_lines

LINE = '2026-01-01 00:00:00 | INFO | train_inner | {"num_updates": "%d", "wpb": "%d", "wps": "%d"}\n'
READ = Namespace(
    update_freq=[2], max_update=100_000, batch_size=8, tokens_per_sample=512, max_tokens=None, arch=""
)


def test_the_pace_is_that_of_the_later_half(tmp_path):
    log = tmp_path / "train.log"
    assert pace_of(log) is None
    log.write_text("".join(LINE % x for x in ((5, 64, 1), (10, 64, 2), (15, 64, 30))))
    assert pace_of(log) is None
    with log.open("a") as file:
        file.write(LINE % (20, 64, 40))
        file.write('2026-01-01 00:00:00 | INFO | usage | {"peak_memory": 1073741824}\n')
    assert pace_of(log) == Pace(64, 35, 2**30)


def test_tokens_without_a_measurement():
    lines = plan_lines("x/y", READ, 8, None, None)
    assert lines[0] == "updates   100,000 of 65,536 tokens, 6,553,600,000 in all"
    assert "not measured" in lines[1] and len(lines) == 2


def test_hours_memory_and_epochs():
    lines = plan_lines("x/y", READ, 8, Pace(65_536, 1_000_000, 3 * 2**30), 103_000_000)
    assert "epochs    63.6 of 103,000,000 tokens" in lines
    assert "hours     1.8 at 1,000,000 tokens per second" in lines
    assert "memory    3.0 GiB in each process" in lines


@pytest.mark.parametrize(
    ("name", "arch", "method"),
    [
        ("wikitext103/transnormer_t1", "transnormer_t1", "TransNormer T1"),
        ("wikitext103/transformer_lm", "transformer_lm", "Vanilla"),
        ("wikitext103/lln_lm", "lln_lm", None),
        ("wikitext2/transnormer_t1", "transnormer_t1", None),
    ],
)
def test_the_papers_row(name, arch, method):
    lines = plan_lines(name, Namespace(**{**vars(READ), "arch": arch}), 8, None, None)[2:]
    if method is None:
        assert not lines
        return
    (row,) = (x for x in read_table("transnormer_04_wikitext103_lm") if x["method"] == method)
    assert row["ppl_val"] in lines[0] and row["ppl_test"] in lines[0]
    assert f"{0.98 * float(row['ppl_val']):.2f} to {1.02 * float(row['ppl_val']):.2f} valid" in lines[1]


def test_a_dry_plan_writes_nothing(call, config, tmp_path, capsys):
    save_dir = tmp_path / "run"
    call(
        "scripts/train_lm.sh",
        config,
        tmp_path / "data",
        "--gpus",
        0,
        "--dry-run",
        "--plan",
        "--save-dir",
        save_dir,
    )
    said = capsys.readouterr().out
    assert "updates   4 of" in said and "not measured" in said
    assert not save_dir.exists()


def test_a_plan_trains_the_first_updates_and_leaves_nothing(call, config, corpus, tmp_path, capsys):
    save_dir = tmp_path / "run"
    call("scripts/train_lm.sh", config, corpus, "--gpus", 0, "--plan", "--save-dir", save_dir)
    said = capsys.readouterr().out
    assert "tokens per second" in said and "epochs" in said and "GiB in each process" in said
    assert not save_dir.exists()
