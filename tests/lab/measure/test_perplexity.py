"""eval_ppl.sh: its figures against an independent computation, and bad input."""

import json
import math
import os
import re
import shutil

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from fairseq.sequence_scorer import SequenceScorer

from lab.data.preparation import numbered, write_rows
from lab.data.prepared import PreparedData, open_prepared
from lab.errors import UserError
from lab.measure import TrainedRun, measuring, perplexity
from lab.measure.perplexity import ChunkedScorer, Scores, unigram_bits
from lab.measure.perplexity import figures as perplexities
from tests.helpers.lm import PAD, build_lm, dictionary, tokens
from user_dir.models.decoder import LinearAttentionDecoder


@pytest.fixture
def checkpoint(trained):
    return trained / "checkpoint_last.pt"


@pytest.fixture
def evaluated(call, checkpoint, corpus, tmp_path):
    """Runs eval_ppl.sh with these flags; gives its result."""
    out = tmp_path / "result.json"

    def run(*flags):
        out.unlink(missing_ok=True)
        call("scripts/eval_ppl.sh", checkpoint, corpus, "--out", out, *flags)
        return json.loads(out.read_text())

    return run


def reference(checkpoint, corpus, length: int, overlap: int = 0) -> tuple[float, int]:
    """Mean loss in nats over the test split cut into pieces, and the number of tokens.

    Before the tokens of a piece the model reads `overlap` earlier ones.
    """
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    model.eval()
    rows = load_indexed_dataset(str(corpus / "test"), task.dictionary)
    text = torch.cat([rows[i] for i in range(len(rows))])
    total = 0.0
    for start in range(0, len(text), length):
        first = max(0, start - overlap)
        target = text[first : start + length].long()
        before = text[first - 1 : first] if first else torch.tensor([task.dictionary.eos()])
        source = torch.cat([before, target[:-1]]).long()
        with torch.no_grad():
            logits = model(source[None])[0][0]
        new = slice(start - first, None)
        total += torch.nn.functional.cross_entropy(logits[new], target[new], reduction="sum").item()
    return total / len(text), len(text)


def test_figures(evaluated, checkpoint, corpus, tmp_path, capsys):
    result = evaluated()
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
    assert f"{math.exp(nats):.2f} per word" in printed and str(tmp_path / "result.json") in printed


@pytest.mark.parametrize("flags", [[], ["--carry-state"]], ids=["pieces", "carried"])
def test_a_half_written_checkpoint_stands_back_for_the_newest_whole_one(
    flags, call, trained, corpus, tmp_path, capsys
):
    folder, out = tmp_path / "run", tmp_path / "result.json"
    shutil.copytree(trained, folder)
    os.truncate(folder / "checkpoint_best.pt", 5000)
    call("scripts/eval_ppl.sh", folder / "checkpoint_best.pt", corpus, "--out", out, *flags)
    assert "checkpoint_best.pt is incomplete; taking checkpoint_last.pt" in capsys.readouterr().out
    assert json.loads(out.read_text())["checkpoint"] == str(folder / "checkpoint_last.pt")


def test_no_logits_of_a_whole_batch(evaluated, monkeypatch):
    def output_layer(*_):
        raise AssertionError("all logits were asked for")

    monkeypatch.setattr(LinearAttentionDecoder, "output_layer", output_layer)
    evaluated()


def test_bits_of_token_frequencies(tmp_path):
    """With one added to the counts of train `</s>` has 2/16, a 8/16 and b 3/16 of 16; test is a a b </s>."""
    words, rows = Dictionary(), {"train": ["a a a a b b a a a"], "valid": ["b b"], "test": ["a a b"]}
    for word in "ab":
        words.add_symbol(word)
    words.save(str(tmp_path / "dict.txt"))
    for split, lines in rows.items():
        write_rows(tmp_path / split, numbered(lines, words), len(words))
    data = PreparedData(tmp_path, {})
    three = math.log2(16 / 3)
    assert unigram_bits(data, "test") == pytest.approx((1 + 1 + three + 3) / 4)
    assert unigram_bits(data, "valid") == pytest.approx((three + three + 3) / 3)


OF_MODEL = {"architecture", "parameters", "best_update"}
SCORES = {"bits", "perplexity", "unigram_bits"}


def measured(kind, checkpoint, folder):
    """What a study records of a run, and the words of its two splits."""
    data = open_prepared(folder, ("train", "valid", "test"))
    run = TrainedRun(checkpoint.parent, checkpoint, (), data, torch.device("cpu"))
    found = measuring(kind)(run)
    assert set(found) == {"valid", "test"} | OF_MODEL and found["valid"] != found["test"]
    assert found["test"]["unigram_bits"] == unigram_bits(data, "test")
    return found


def test_the_record_of_a_language_model(evaluated, checkpoint, corpus):
    found, alone = measured("language_model", checkpoint, corpus), evaluated()
    assert set(found["test"]) == SCORES | {"tokens", "words", "nats", "perplexity_per_word"}
    assert found["test"]["bits"] == pytest.approx(alone["loss_bits_per_token"])
    assert found["test"]["perplexity_per_word"] == pytest.approx(alone["perplexity_per_word"])
    assert [found[name] for name in ("architecture", "best_update")] == ["transnormer_t1", 4]
    assert found["parameters"] == alone["parameters"]


def test_the_record_of_an_encoder(pretrained, encoder_corpus):
    found = measured("masked_lm", pretrained / "checkpoint_last.pt", encoder_corpus)
    for split in ("valid", "test"):
        assert set(found[split]) == SCORES | {"masked_tokens"}
        assert found[split]["bits"] == pytest.approx(math.log2(found[split]["perplexity"]))


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
    assert figures["words_unknown"] is None
    split = prepared.manifest["splits"]["test"]
    for counted, instead, why in (
        (tokens - 1, split, f"only {tokens - 1:,} of {tokens:,} tokens were evaluated"),
        (tokens, {**split, "documents": 1}, "the rows lack the empty lines of the text"),
        (tokens, {}, "has no preparation.json with its number of words"),
    ):
        prepared.manifest["splits"]["test"] = instead
        figures = perplexities(3.0, counted, prepared, "test")
        assert figures["perplexity_per_word"] is None and why in figures["words_unknown"]


def test_why_the_figure_per_word_is_unknown_and_the_cpu_by_name(
    call, refused, checkpoint, corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    shutil.copytree(corpus, tmp_path / "data", ignore=shutil.ignore_patterns("preparation.json"))
    out = tmp_path / "result.json"
    call("scripts/eval_ppl.sh", checkpoint, tmp_path / "data", "--gpus", 0, "--out", out)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert f"per word unknown, since {tmp_path / 'data'} has no preparation.json" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--gpus is 1" in refused("scripts/eval_ppl.sh", checkpoint, corpus, "--gpus", 1)


@pytest.mark.parametrize("window", [16, 20])
def test_context_window_evaluates_the_same_tokens_after_as_many_others(evaluated, checkpoint, corpus, window):
    """Of 32 positions, `window` are read and not evaluated."""
    found = evaluated("--context-window", window)
    nats, tokens = reference(checkpoint, corpus, 32 - window, window)
    assert (found["tokens"], found["context_window"]) == (tokens, window)
    assert found["loss_nats_per_token"] == pytest.approx(nats, rel=1e-5)
    assert reference(checkpoint, corpus, 32)[0] != pytest.approx(nats, rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "difference"),
    [
        ("--context-window 16", "context window 0 instead of 16"),
        ("--tokens-per-sample 16", r"flags \[\] instead of \['--tokens-per-sample', '16'\]"),
        ("--carry-state --streams 2", "streams 1 instead of 2"),
        ("--carry-state --reset-at-documents", "reset at documents False instead of True"),
        ("--carry-state --model-overrides {'dropout':0}", "model overrides {} instead of {'dropout': 0}"),
    ],
)
def test_a_result_with_other_settings_is_kept(flags, difference, call, refused, checkpoint, corpus, tmp_path):
    command = ["scripts/eval_ppl.sh", checkpoint, corpus, "--split", "valid"]
    carried = [word for word in flags.split() if word == "--carry-state"]
    call(*command, *carried)
    out = checkpoint.with_suffix(".valid.carried.json" if carried else ".valid.json")
    before = out.read_bytes()
    sentence = refused(*command, *flags.split())
    assert re.search(rf"{out.name} holds another result, with {difference}; move it away, or name", sentence)
    data = shutil.copytree(corpus, tmp_path / "other")
    command[2] = data
    assert f"instead of {data}; " in refused(*command, *carried)
    assert out.read_bytes() == before


def test_several_splits_go_beside_the_checkpoint(call, checkpoint, corpus):
    call("scripts/eval_ppl.sh", checkpoint, corpus, "--split", "valid,test")
    for split in ("valid", "test"):
        result = json.loads(checkpoint.with_suffix(f".{split}.json").read_text())
        assert result["split"] == split


def test_fairseq_flags_pass_through(evaluated, checkpoint, corpus):
    result = evaluated("--tokens-per-sample", 16, "--batch-size", 1)
    nats, _ = reference(checkpoint, corpus, 16)
    assert result["loss_nats_per_token"] == pytest.approx(nats, rel=1e-5)


def test_overrides_are_said_and_kept(evaluated, capsys):
    """Smaller blocks give other figures."""
    results = []
    for overrides in ({}, {"diag_block_size": 4}):
        results.append(evaluated("--model-overrides", overrides))
        assert (f"with --model-overrides {overrides}" in capsys.readouterr().out) == bool(overrides)
        assert results[-1]["model_overrides"] == overrides
    assert results[0]["loss_nats_per_token"] != results[1]["loss_nats_per_token"]


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transnormer_t1", {}),
        ("transformer_lm", {}),
        ("transnormer_t2", {"decoder_output_bias": "learned"}),
        ("transnormer_t1", {"adaptive_softmax_cutoff": "10,20"}),
    ],
    ids=["ours", "fairseq", "bias", "adaptive"],
)
@pytest.mark.parametrize("starts", [None, [0, 5, 3]])
def test_scores_are_fairseqs(arch, options, starts):
    model, source, target = build_lm(arch, **options), tokens(3, 20), tokens(3, 20, seed=1)
    source[1, 12:] = target[1, 12:] = PAD
    sample = {"net_input": {"src_tokens": source, "src_lengths": None}, "target": target}
    if starts:
        sample["start_indices"] = starts
    expected, found = (
        scorer.generate([model], dict(sample))
        for scorer in (SequenceScorer(dictionary(40)), ChunkedScorer(dictionary(40), 7))
    )
    assert len(found) == 3
    for (ours, *_), (theirs, *_) in zip(found, expected, strict=True):
        assert torch.equal(ours["tokens"], theirs["tokens"])
        torch.testing.assert_close(ours["positional_scores"], theirs["positional_scores"])


@pytest.mark.parametrize("score", [-math.inf, math.nan])
def test_a_loss_that_is_not_finite_makes_the_sum_so(score):
    scores, model = Scores(), build_lm("transnormer_t1")
    scores.add(model, [[{"positional_scores": torch.tensor([-1.0, -2.0])}]])
    assert (scores.tokens, scores.nats) == (2, 3.0)
    scores.add(model, [[{"positional_scores": torch.tensor([-1.0, score])}]])
    assert scores.tokens == 4 and not math.isfinite(scores.nats)
    for nats in (scores.nats, 800.0):
        with pytest.raises(UserError, match="nats per token: the training has diverged"):
            perplexity.perplexity_of(nats)


def test_scores_that_are_not_finite_end_in_a_sentence():
    """fairseq-eval-lm leaves tokens with a score of -inf out, and reports too low a perplexity."""
    model, source = build_lm("transnormer_t1", decoder_output_bias="learned"), tokens(2, 9)
    sample = {"net_input": {"src_tokens": source}, "target": source}
    said = {
        -math.inf: "gives a token of the text the probability 0",
        math.nan: "gives probabilities that are NaN",
    }
    for value, message in said.items():
        model.decoder.output_projection.bias.data[source[0, 3]] = value
        for score in (ChunkedScorer(dictionary(40), 7), SequenceScorer(dictionary(40))):
            with pytest.raises(UserError, match=message):
                score.generate([model], sample)


def test_a_probability_that_underflows_in_an_ensemble_ends_in_a_sentence():
    model, source = build_lm("transnormer_t1", decoder_output_bias="learned"), tokens(2, 9)
    model.decoder.output_projection.bias.data[source[0, 3]] = -200
    sample, scorer = {"net_input": {"src_tokens": source}, "target": source}, SequenceScorer(dictionary(40))
    assert all(row[0]["positional_scores"].isfinite().all() for row in scorer.generate([model], sample))
    with pytest.raises(UserError, match="probability 0.* evaluate the checkpoints one by one"):
        scorer.generate([model, model], sample)


def test_a_compiled_model_is_asked_for_once_and_not_on_a_cpu(monkeypatch):
    compiled = []
    monkeypatch.setattr(perplexity, "compile_features", compiled.append)
    model, source = build_lm("transnormer_t1"), tokens(2, 9)
    sample = {"net_input": {"src_tokens": source, "src_lengths": None}, "target": source}
    scorer = ChunkedScorer(dictionary(40), compiled=True)
    scorer.generate([model], dict(sample))
    assert not compiled
    model, meta = model.to("meta"), source.to("meta")
    sample = {"net_input": {"src_tokens": meta, "src_lengths": None}, "target": meta}
    for _ in range(2):
        with pytest.raises((RuntimeError, NotImplementedError)):  # whose tensors have no numbers
            scorer.generate([model], dict(sample))
    assert compiled == [model]
