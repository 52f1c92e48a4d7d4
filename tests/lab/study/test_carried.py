"""Study `carried`: both ways of training, read both ways; the ratios and the picture."""

import pytest
import torch

from lab.data.prepared import open_prepared
from lab.files import ROOT
from lab.measure import TrainedRun, carried_state
from lab.publish import language_models as carried
from lab.run.folder import LAST
from lab.study.declaration import read_study
from lab.study.pictures import section_of
from tests.helpers.tiny import train_run
from tests.lab.study.conftest import record_of


def record(way, apart, with_state, model="transnormer_t1", seed=1):
    buckets = [{"end": 512, "perplexity_per_token": with_state}, {"end": 1024, "perplexity_per_token": 9.0}]
    found = {
        "apart": {"perplexity_per_token": apart},
        "carried": {"perplexity_per_token": with_state, "longest": 700, "buckets": buckets},
        "unigram_perplexity": 700.0,
    }
    cell = {"updates": "150", "model": model, "segment": "64", "way": way, "seed": seed}
    return record_of(cell, found)


def test_a_ratio_is_of_the_medians_of_both_ways_of_training():
    of = read_study("carried")
    records = [record("apart", 100.0 * seed, 400.0, seed=seed) for seed in (1, 2, 3)]
    records += [record("carried", 300.0, 100.0), record("carried", 1.0, 1.0, "lln_diag_lm")]
    text = "\n".join(carried.way_tables(section_of(of, records)))
    assert "| TransNormer T1 | 64 | 1.50 | 0.25 | 0.50 |" in text and "LLN" not in text
    assert "0 of 1 models" in text
    assert carried.way_tables(section_of(of, records[:3])) == []


def test_the_picture_names_its_source(tmp_path):
    path = tmp_path / "positions.png"
    records = [record("apart", 2.0, 3.0), record("carried", 3.0, 2.0)]
    carried.draw_positions(section_of(read_study("carried"), records), "abc", path)
    assert path.read_bytes().startswith(b"\x89PNG") and b"abc" in path.read_bytes()


def test_the_picture_ends_where_the_longest_stream_ends(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(carried, "plot_curves", lambda path, panels, **words: drawn.extend(panels))
    carried.draw_positions(
        section_of(read_study("carried"), [record("carried", 3.0, 2.0)]), "abc", tmp_path / "positions.png"
    )
    (*_, (curve, level)) = drawn[0]
    assert (list(curve.x), list(level.x)) == ([512, 700], [512, 700])


@pytest.mark.slow
def test_a_run_is_read_both_ways(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(carried_state, "READ_AT_ONCE", 16)
    flags = "--decoder-embed-dim 16 --decoder-layers 2 --decoder-attention-heads 2 --tokens-per-sample 64 "
    flags += "--batch-size 32 --max-update 2 --disable-validation --task carried_language_modeling"
    config, folder = ROOT / "configs" / "wikitext2" / "transnormer_t1.yaml", tmp_path / "run"
    train_run(config, corpus, folder, flags.split())
    data = open_prepared(corpus, ("train", "valid", "test"))
    run = TrainedRun(folder, folder / LAST, (), data, torch.device("cpu"))
    found = carried_state.measure_run(run)
    apart, state = found["apart"], found["carried"]
    assert apart["tokens"] >= state["tokens"] == sum(bucket["tokens"] for bucket in state["buckets"]) > 0
    # Two updates over, the loss is still about that of guessing one of 60 words.
    assert 2 < apart["loss_nats_per_token"] < 6 and 2 < found["unigram_perplexity"] < 100
