"""Attention alone and the speech encoder: the work of a case, reports, tiny runs. No times are judged."""

import pytest
import torch

from benchmarks import attention_cost, speech_cost
from benchmarks.attention_cost import AttentionOperator
from benchmarks.models import Size
from benchmarks.speech_cost import SpeechModel
from lab.papers import read_table
from tests.benchmarks.records import results, steps

TINY = attention_cost.TINY_HEADS


def test_both_forms_of_softmax_are_one_attention_and_causal():
    kept, fused = (AttentionOperator(name, TINY, 9, 9, "cpu") for name in ("softmax", "softmax-fused"))
    q, k, v = kept.sample(2, 9)["inputs"]
    torch.testing.assert_close(kept.attend(q, k, v), fused.attend(q, k, v))
    later = torch.cat([v[:, :, :5], torch.randn_like(v[:, :, 5:])], dim=2)
    torch.testing.assert_close(kept.attend(q, k, v)[:, :, :5], kept.attend(q, k, later)[:, :, :5])


def test_memory_is_judged_by_how_it_doubles():
    def grows(case):
        power = 2 if case["architecture"] == "softmax" else 1
        if power == 2 and case["length"] > 8192:
            return "out of memory"
        return steps(0.5, 1000 * case["length"] ** power)

    found = results(attention_cost, attention_cost.OPERATORS, grows)
    lines = attention_cost.growth(found)
    assert [line.partition(":")[0] for line in lines] == ["met"] * 5 and "4.00 to 4.00" in lines[-1]
    text = attention_cost.markdown(found)
    assert "| softmax, weights kept | 0.5 | 0.5 | 0.5 | 0.5 | 0.5 | out of memory |" in text
    constant = results(attention_cost, attention_cost.OPERATORS, lambda case: steps(1.0, 2**20))
    assert all(line.startswith("NOT MET") for line in attention_cost.growth(constant))
    empty = {**found, "records": []}
    assert all(line.startswith("not measured") for line in attention_cost.growth(empty))


def test_figures_are_per_sequence():
    found = results(attention_cost, ["elu"], lambda case: steps(8.0, 2**24))
    found["settings"]["tokens"] = 65_536
    text = attention_cost.markdown(found)
    row = next(line for line in text.splitlines() if line.startswith("| 1+elu"))
    assert row.split("|")[2].strip() == "0.0625" and row.split("|")[9].strip() == "8"


def test_utterances_are_a_third_of_the_longest_and_padding_changes_nothing():
    speech = SpeechModel("softmax", Size(layers=1, width=12, heads=2, vocabulary=5), 2400, 2400, "cpu")
    torch.manual_seed(1)
    lengths = speech.sample(400, 240)["lengths"].float()
    assert lengths.max() == lengths[0] == 240 and lengths.min() >= 16
    assert float(lengths[1:].mean()) == pytest.approx(80, abs=8)
    sample, model = speech.sample(3, 60), speech.model.eval()
    with torch.no_grad():
        out = model(sample["frames"], sample["lengths"])
        row = int(sample["lengths"][1:].argmin()) + 1
        size = int(sample["lengths"][row])
        alone = model(sample["frames"][row : row + 1, :size], sample["lengths"][row : row + 1])
    torch.testing.assert_close(out[:size, row], alone[:, 0], rtol=1e-4, atol=1e-5)


def test_the_papers_ratios_come_from_their_file():
    times = {"softmax": 4.0, "reformer-4": 6.0, "elu": 2.0}
    found = results(speech_cost, times, lambda case: steps(times[case["architecture"]], 2**30))
    paper = {row["method"]: float(row["seconds_per_epoch"]) for row in read_table("linear_03_speech")}
    text = speech_cost.markdown(found)
    assert f"| 1+elu | 2.00 | 1,024 | 0.50 | {paper['linear'] / paper['softmax']:.2f} |" in text
    assert f"| 1.50 | {paper['lsh-4'] / paper['softmax']:.2f} |" in text
    nothing = {**found, "records": [r for r in found["records"] if r["architecture"] == "elu"]}
    assert "| softmax | – | – | – | 1.00 |" in speech_cost.markdown(nothing)
