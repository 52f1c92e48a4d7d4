"""eval_ppl.sh: its figures against a computation of our own, and what bad input gets."""

import json
import math
import pickle
import shutil

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data.data_utils import load_indexed_dataset

from pipeline.data.prepared import open_prepared
from pipeline.evaluation import eval_ppl
from pipeline.evaluation.scoring import figures as perplexities
from tests.pipeline.training.test_train import Evil
from user_dir.models.decoder import LinearAttentionDecoder


@pytest.fixture
def checkpoint(trained):
    return trained / "checkpoint_last.pt"


def reference(checkpoint, corpus, length: int) -> tuple[float, int]:
    """Mean loss in nats over the test split cut into pieces, and the number of tokens."""
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    model.eval()
    rows = load_indexed_dataset(str(corpus / "test"), task.dictionary)
    text = torch.cat([rows[i] for i in range(len(rows))])
    total = 0.0
    for start in range(0, len(text), length):
        target = text[start : start + length].long()
        before = text[start - 1 : start] if start else torch.tensor([task.dictionary.eos()])
        source = torch.cat([before, target[:-1]]).long()
        with torch.no_grad():
            logits = model(source[None])[0][0]
        total += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
    return total / len(text), len(text)


def test_figures(call, checkpoint, corpus, tmp_path, capsys):
    out = tmp_path / "result.json"
    call(eval_ppl, checkpoint, corpus, "--out", out)
    result = json.loads(out.read_text())
    nats, tokens = reference(checkpoint, corpus, 32)
    words = json.loads((corpus / "preparation.json").read_text())["splits"]["test"]["words"]
    assert result["tokens"] == tokens
    assert result["words"] == words == tokens  # whole words are this corpus' tokens
    assert result["loss_nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert result["loss_bits_per_token"] == pytest.approx(nats / math.log(2), rel=1e-5)
    assert result["perplexity_per_token"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert result["perplexity_per_word"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert result["updates"] == 4 and result["architecture"] == "transnormer_t1"
    printed = capsys.readouterr().out
    # The last digit is that of cross_entropy over all logits.
    assert f"{math.exp(nats):.2f} per word" in printed and str(out) in printed


def test_no_logits_of_a_whole_batch(call, checkpoint, corpus, tmp_path, monkeypatch):
    def output_layer(*_):
        raise AssertionError("all logits were asked for")

    monkeypatch.setattr(LinearAttentionDecoder, "output_layer", output_layer)
    call(eval_ppl, checkpoint, corpus, "--out", tmp_path / "result.json")


def test_pieces_of_words(corpus, tmp_path):
    """Two tokens a word square the perplexity."""
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    prepared = open_prepared(data, ("test",))
    tokens = prepared.tokens("test")
    prepared.manifest["splits"]["test"]["words"] = tokens / 2
    figures = perplexities(3.0, tokens, prepared, "test")
    assert figures["perplexity_per_token"] == pytest.approx(8)
    assert figures["perplexity_per_word"] == pytest.approx(64)
    assert perplexities(3.0, tokens - 1, prepared, "test")["perplexity_per_word"] is None


def test_context_window_evaluates_the_same_tokens(call, checkpoint, corpus, tmp_path):
    results = []
    for window in (0, 16):
        out = tmp_path / f"{window}.json"
        call(eval_ppl, checkpoint, corpus, "--context-window", window, "--out", out)
        results.append(json.loads(out.read_text()))
    assert results[0]["tokens"] == results[1]["tokens"]
    assert results[0]["loss_nats_per_token"] != results[1]["loss_nats_per_token"]
    assert results[1]["context_window"] == 16


def test_several_splits_go_beside_the_checkpoint(call, checkpoint, corpus):
    call(eval_ppl, checkpoint, corpus, "--split", "valid,test")
    for split in ("valid", "test"):
        result = json.loads(checkpoint.with_suffix(f".{split}.json").read_text())
        assert result["split"] == split


def test_fairseq_flags_pass_through(call, checkpoint, corpus, tmp_path):
    out = tmp_path / "result.json"
    call(eval_ppl, checkpoint, corpus, "--out", out, "--tokens-per-sample", 16, "--batch-size", 1)
    nats, _ = reference(checkpoint, corpus, 16)
    assert json.loads(out.read_text())["loss_nats_per_token"] == pytest.approx(nats, rel=1e-5)


def test_overrides_are_said_and_kept(call, checkpoint, corpus, tmp_path, capsys):
    """Smaller blocks give other figures."""
    results = []
    for overrides in ({}, {"diag_block_size": 4}):
        out = tmp_path / f"{len(overrides)}.json"
        call(eval_ppl, checkpoint, corpus, "--out", out, "--model-overrides", overrides)
        results.append(json.loads(out.read_text()))
        assert (f"with --model-overrides {overrides}" in capsys.readouterr().out) == bool(overrides)
        assert results[-1]["model_overrides"] == overrides
    assert results[0]["loss_nats_per_token"] != results[1]["loss_nats_per_token"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--tokens-per-sample 64", "trained for 32 positions"),
        ("--context-window 32", "must be at least 0 and less than"),
        ("--max-tokens 4", "--max-tokens is 4, less than"),
        ("--split none", "has no split none; it has train, valid, test"),
        ("--num-shards 999 --shard-id 998", "not one token was evaluated"),
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("--split valid,test --out x.json", "--out names one file"),
        ("--out /proc/none/x.json", "cannot write /proc/none/x.json"),
    ],
)
def test_impossible_evaluations(extra, message, refused, checkpoint, corpus):
    assert message in refused(eval_ppl, checkpoint, corpus, *extra.split())


def test_missing_arguments(refused, checkpoint):
    assert "the following arguments are required: DATA" in refused(eval_ppl, checkpoint)


def test_other_dictionaries(refused, checkpoint, corpus, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(corpus, data)
    words = (corpus / "dict.txt").read_text().splitlines()
    (data / "dict.txt").write_text("\n".join(words[:-1]) + "\n")
    assert "entries, but" in refused(eval_ppl, checkpoint, data)
    (data / "dict.txt").write_text("\n".join(words[::-1]) + "\n")
    assert "differs from" in refused(eval_ppl, checkpoint, data)


def test_missing_and_truncated_data(refused, checkpoint, corpus, tmp_path):
    data = tmp_path / "data"
    assert "no data folder" in refused(eval_ppl, checkpoint, data)
    shutil.copytree(corpus, data)
    content = data / "test.bin"
    content.write_bytes(content.read_bytes()[:-1])
    assert "test.bin holds" in refused(eval_ppl, checkpoint, data)
    (data / "preparation.json").write_text("{")
    assert "preparation.json is damaged" in refused(eval_ppl, checkpoint, data)


def test_files_that_are_no_checkpoints(refused, checkpoint, corpus, tmp_path):
    path = tmp_path / "given.pt"
    assert "no checkpoint" in refused(eval_ppl, path, corpus)
    path.write_bytes(b"")
    assert "is damaged" in refused(eval_ppl, path, corpus)
    path.write_text("text")
    assert "is damaged" in refused(eval_ppl, path, corpus)
    path.write_bytes(checkpoint.read_bytes()[:5000])
    assert "is damaged" in refused(eval_ppl, path, corpus)
    torch.save({"weights": torch.zeros(3)}, path)
    assert "holds no model" in refused(eval_ppl, path, corpus)
    torch.save({"model": {}, "cfg": None}, path)
    assert "holds no configuration" in refused(eval_ppl, path, corpus)


@pytest.mark.parametrize("write", [torch.save, lambda x, path: path.write_bytes(pickle.dumps(x))])
def test_pickle_that_would_run_code_runs_nothing(write, refused, corpus, tmp_path):
    path, trace = tmp_path / "evil.pt", tmp_path / "trace"
    write({"model": Evil(trace)}, path)
    assert "nothing in it was run" in refused(eval_ppl, path, corpus)
    assert not trace.exists()
