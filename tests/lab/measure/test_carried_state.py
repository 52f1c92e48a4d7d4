"""States carried from segment to segment: the law, streams, buckets, the command and its refusals."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lab.errors import UserError
from lab.measure import carried_state
from lab.measure.carried_state import (
    CARRIED,
    Buckets,
    check_growth,
    check_model,
    evaluate_streams,
    memory_in_use,
    parallel_streams,
    side_by_side,
    split_documents,
    trained_for,
)
from lab.publish import language_models as report
from lab.run.checkpoint import Checkpoint
from tests.helpers.lm import PAD, build_lm, dictionary, tokens
from user_dir.attention import attention_names

LENGTHS = (150, 150, 97, 1)
SIZES = {
    "decoder_layers": 1,
    "diag_block_size": 16,
    "lln_diag_block_size": 16,
    "flash_chunk_size": 16,
    "flash_key_dim": 6,
    "flash_quad_key_dim": 6,
    "performer_features": 16,
    "tnn_network_dim": 16,
    "tnn_network_layers": 2,
    "transformer_ls_window": 16,
    "transformer_ls_rank": 2,
    "transformer_ls_chunk": 8,
}


def ragged():
    pieces = [tokens(1, length, seed=row)[0] for row, length in enumerate(LENGTHS)]
    return side_by_side(pieces, [2, 5, 6, 7], dictionary(40))


def random_segments(seed):
    chance = random.Random(seed)
    while True:
        yield chance.choice([1, 2, 7, 16, 33, 64])


@pytest.mark.parametrize("name", attention_names(causal=True))
@torch.no_grad()
def test_any_segmentation_gives_the_losses_of_one_forward_pass(name):
    model, streams = build_lm("linear_transformer_lm", decoder_attention=name, **SIZES), ragged()
    logits = model(streams.source)[0]
    expected = F.cross_entropy(logits.mT, streams.target, ignore_index=PAD, reduction="none")
    for segments in (random_segments(1), random_segments(2), iter([1, 149]), iter([150])):
        parts = [losses for _, losses, _ in carried_state.segment_losses(model, streams, PAD, segments)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-5, atol=1e-5)


def test_streams_cover_the_text_once():
    rows = [torch.arange(4, 10), torch.arange(10, 15)]
    streams = parallel_streams(rows, 3, dictionary(40))
    assert streams.target.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, PAD]]
    assert streams.source.tolist() == [[2, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, PAD]]
    with pytest.raises(UserError, match="11 tokens make 6 streams of 2; give 6 or fewer"):
        parallel_streams(rows, 9, dictionary(40))


def test_documents_begin_at_titles():
    words = dictionary(5)
    for word in ("=", "Title"):
        words.add_symbol(word)
    lines = ["w4", "", "= Title =", "", "w4 w4", "", "= Title =", "", "w4", "= Title =", "w4"]
    rows = [words.encode_line(line, add_if_not_exist=False).long() for line in lines]
    lengths = [len(document) for document in split_documents(rows, words, None)]
    assert lengths == [sum(map(len, rows[:6])), sum(map(len, rows[6:]))]
    with pytest.raises(UserError, match="no line is a title"):
        split_documents(rows[:1], words, None)


def test_buckets():
    buckets = Buckets(torch.device("cpu"))
    losses, real = torch.full((2, 1500), 0.5), torch.ones(2, 1500, dtype=torch.bool)
    real[1, 600:] = False
    losses[1, 600:] = 0
    for start in (0, 700, 1400):
        part = slice(start, start + 700)
        buckets.add(start, losses[:, part], real[:, part], 1.0, {"a": {"x": torch.zeros(5)}})
    found = buckets.results()
    assert [(b["first"], b["end"], b["tokens"]) for b in found] == [
        (0, 512, 1024),
        (512, 1024, 600),
        (1024, 2048, 476),
    ]
    assert all(b["loss_nats_per_token"] == pytest.approx(0.5) for b in found)
    assert found[0]["perplexity_per_token"] == pytest.approx(math.exp(0.5))
    assert sum(b["seconds"] for b in found) == pytest.approx(3)
    assert [b["state_bytes"] for b in found] == [20, 20, 20]


def test_a_row_of_the_table():
    bucket = {"first": 512, "end": 1024, "tokens": 2000, "loss_nats_per_token": 1.5, "seconds": 2.0}
    bucket |= {"perplexity_per_token": 4.48169, "tokens_per_second": 1000.0}
    bucket |= {"state_bytes": 3 * 2**19, "memory_bytes": 5 * 2**20}
    about = {"reset_at_documents": False, "remark": None, "streams": 1, "architecture": "a", "updates": 7}
    about |= {"tokens_per_sample": 64, "split": "test", "longest": 2000, "segment": 512}
    about["environment"] = {"commit": "abc", "date": "2000-01-02"}
    said, table = report.markdown({**about, "buckets": [bucket]}).split("\n\n")
    header, _, row = table.splitlines()
    assert "a, 7 updates, trained on samples of 64; test split as one stream of 2,000 tokens" in said
    assert dict(zip(header.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True)) == {
        "position": "512 to 1,023",
        "tokens": "2,000",
        "nats per token": "1.5000",
        "perplexity": "4.48",
        "tokens/s": "1,000",
        "state, MiB": "1.500",
        "memory, MiB": "5",
    }


def test_the_memory_is_that_of_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 7)
    assert memory_in_use(torch.device("cuda")) == 7
    assert 2**20 < memory_in_use(torch.device("cpu")) < 2**40


def test_state_is_constant():
    model = build_lm("transnormer_t1", decoder_attention="diag,norm", diag_block_size=16)
    streams = side_by_side([tokens(1, 4096)[0]], [2], dictionary(40))
    buckets = evaluate_streams(model, [streams], PAD, 256)
    assert [b["first"] for b in buckets] == [0, 512, 1024, 2048]
    assert len({b["state_bytes"] for b in buckets}) == 1


def test_states_that_do_not_fit(monkeypatch):
    streams = side_by_side([tokens(1, 4096)[0]], [2], dictionary(40))
    monkeypatch.setattr(carried_state, "memory_available", lambda: 10**6)
    check_growth(build_lm("linear_transformer_lm"), [streams], PAD)
    with pytest.raises(UserError, match="grows by .* KiB a token, to 0.0 GiB over streams of 4,096 tokens"):
        check_growth(build_lm("linear_transformer_lm", decoder_attention="softmax"), [streams], PAD)


def test_models_that_cannot():
    with pytest.raises(UserError, match="needs a language model of this project"):
        check_model(build_lm("transformer_lm"), 10)
    with pytest.raises(UserError, match="longer than the 256 learned positions"):
        check_model(build_lm("transnormer_t1", absolute_positions="learned"), 257)


@pytest.mark.parametrize(
    ("task", "epoch", "here", "expected"),
    [
        ("language_modeling", 1, 25, 16),
        (CARRIED, 1, 25, 25 * 16),
        (CARRIED, 3, 5, 10 * 16),
        (CARRIED, 2, 15, 15 * 16),
        (CARRIED, 6, 0, 5 * 16),
    ],
)
def test_positions_of_the_training_are_those_of_an_epoch(task, epoch, here, expected):
    """After 25 updates; the state starts again with each epoch."""
    config = {"task": {"_name": task, "tokens_per_sample": 16}, "optimization": {"update_freq": [1]}}
    place = {"train_iterator": {"epoch": epoch, "iterations_in_epoch": here}}
    state = {"cfg": config, "optimizer_history": [{"num_updates": 25}], "extra_state": place}
    assert trained_for(Checkpoint(Path("a.pt"), state)) == expected


def test_command(call, trained, corpus, tmp_path, capsys):
    """One stream gives the same figures in any segments; three streams know less."""
    checkpoint = trained / "checkpoint_last.pt"
    results = []
    for options in ("--segment 512", "--segment 33", "--streams 3 --segment 100"):
        out = tmp_path / f"{len(results)}.json"
        call("scripts/eval_ppl.sh", checkpoint, corpus, "--carry-state", "--out", out, *options.split())
        results.append(json.loads(out.read_text()))
        assert out.with_suffix(".png").is_file() and "| position |" in out.with_suffix(".md").read_text()
    one, other, three = results
    assert one["tokens"] == other["tokens"] == three["tokens"] and one["words"]
    assert one["loss_nats_per_token"] == pytest.approx(other["loss_nats_per_token"], rel=1e-5)
    assert one["loss_nats_per_token"] != pytest.approx(three["loss_nats_per_token"], rel=1e-5)
    assert [b["tokens"] for b in one["buckets"]] == [b["tokens"] for b in other["buckets"]]
    printed = capsys.readouterr().out
    assert "0 to 511" in printed and f"{one['perplexity_per_token']:.2f} per token" in printed
