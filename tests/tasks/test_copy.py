"""The copy task: samples, counted symbols, and inputs that never show the answer in advance."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.logging import metrics

from lab.measure.accuracy import copying, measure_copying
from tests.helpers.lm import PAD, build_lm
from user_dir.criterions import CopyCriterion
from user_dir.errors import UserError
from user_dir.tasks.copy import CopyTask, CopyTaskConfig
from user_dir.tasks.copy_data import CopyDataset, copied_lengths, copy_dictionary, prompts

DICTIONARY = copy_dictionary(10)
SEPARATOR = 4


def dataset(length=128, samples=64, seed=1, split="train"):
    return CopyDataset(DICTIONARY, length, samples, seed, split)


def rows(data):
    return [(item["source"].tolist(), item["target"].tolist()) for item in map(data.__getitem__, range(64))]


@pytest.mark.parametrize("length", [8, 9, 16, 33, 128])
def test_targets_are_what_stood_n_plus_1_places_before(length):
    for source, target in rows(dataset(length)):
        n = len(source) // 2
        assert n in copied_lengths(length) and len(target) == 2 * n < length
        assert source[n] == SEPARATOR == target[n - 1] and SEPARATOR not in source[:n] + source[n + 1 :]
        assert all(SEPARATOR < symbol < len(DICTIONARY) for symbol in source[:n])
        assert target[: n - 1] == [PAD] * (n - 1)
        # The target of index i is the symbol at i + 1, which stood n + 1 places before.
        assert target[n:] == [source[i - n] for i in range(n, 2 * n)]
        assert source[n + 1 :] == target[n:-1]


def test_n_covers_its_range():
    data = dataset(samples=4000)
    lengths = [len(data[i]["source"]) // 2 for i in range(4000)]
    assert set(lengths) == set(range(32, 63))
    assert abs(sum(lengths) / 4000 - 47) < 0.6  # four standard errors


def test_a_seed_gives_the_same_data_and_splits_epochs_and_seeds_other_data():
    first, again, other = dataset(), dataset(), dataset(seed=2)
    assert rows(first) == rows(again) != rows(other)
    valid, test = dataset(split="valid"), dataset(split="test")
    assert rows(first) != rows(valid) != rows(test) != rows(first)
    before = rows(valid)
    first.set_epoch(2)
    valid.set_epoch(2)
    assert rows(first) != rows(again) and rows(valid) == before


def test_a_batch_counts_its_targets_and_gives_prompts_without_the_answer():
    data = dataset(16)
    batch = data.collater([data[i] for i in range(64)])
    counted = batch["target"].ne(PAD)
    n = counted.sum(1) - 1
    assert batch["ntokens"] == int(counted.sum()) == sum(len(s) // 2 + 1 for s, _ in rows(data))
    prompt, count = prompts(batch, PAD)
    assert torch.equal(count, n) and len(set(n.tolist())) > 1
    for row, (source, _) in zip(prompt.tolist(), rows(data), strict=True):
        length = len(source) // 2
        assert row == source[: length + 1] + [PAD] * (len(row) - length - 1)


def test_an_untrained_model_has_the_loss_of_guessing_and_the_criterion_counts():
    task = CopyTask(CopyTaskConfig(tokens_per_sample=32, seed=1))
    task.load_dataset("valid")
    model = build_lm("linear_transformer_lm", words=15, no_share_decoder_input_output_embed=True)
    data = task.dataset("valid")
    batch = data.collater([data[i] for i in range(64)])
    criterion = CopyCriterion(task)
    with torch.no_grad():
        loss, size, output = criterion(model, batch)
        logits = model(**batch["net_input"])[0]
    assert size == batch["ntokens"] and abs(float(loss) / size - math.log(15)) < 0.5
    wrong = [
        sum(a != b for a, b in zip(row.tolist(), target.tolist(), strict=True) if b != PAD)
        for row, target in zip(logits.argmax(-1), batch["target"], strict=True)
    ]
    assert int(output["nwrong"]) == sum(wrong) > 0
    batch["target"] = logits.argmax(-1).where(batch["target"].ne(PAD), PAD)
    assert (int(criterion(model, batch)[2]["nwrong"]), int(criterion(model, batch)[2]["nexact"])) == (0, 64)


class Copier(torch.nn.Module):
    """Answers correctly except for the second symbol of one sequence."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong.tolist()

    def forward(self, src_tokens, src_lengths=None, incremental_state=None):
        state = {} if incremental_state is None else incremental_state
        if "rows" not in state:
            state.update(rows=src_tokens.tolist(), step=0)
            answers = [[self.answer(row, i) for i in range(src_tokens.shape[1])] for row in state["rows"]]
        else:
            assert src_tokens[:, 0].tolist() == state["last"]
            answers = [[self.answer(row, row.index(SEPARATOR) + state["step"])] for row in state["rows"]]
        state["step"] += 1
        state["last"] = [
            answer[min(len(answer) - 1, row.index(SEPARATOR))]
            for answer, row in zip(answers, state["rows"], strict=True)
        ]
        return (100 * torch.nn.functional.one_hot(torch.tensor(answers), len(DICTIONARY)).float(),)

    def answer(self, row, place):
        n = row.index(SEPARATOR)
        if not n <= place < 2 * n:
            return SEPARATOR
        return PAD if place == n + 1 and row[:n] == self.wrong else row[place - n]


def test_the_figures_of_a_split_by_hand():
    """One symbol of three sequences is wrong: index 1, after the separator at position 0."""
    task = CopyTask(CopyTaskConfig(tokens_per_sample=9, eval_samples=3, seed=2))
    task.load_dataset("test")
    sources = [task.dataset("test")[i]["source"] for i in range(3)]
    n = [len(source) // 2 for source in sources]
    assert set(n) == {2, 3}
    found = copying(Copier(sources[1][: n[1]]), task, "test", 2, torch.device("cpu"))
    assert (found["examples"], found["counted"]) == (3, sum(n) + 3)
    assert found["loss_nats"] == pytest.approx(100 / (sum(n) + 3))
    assert found["accuracy"] == pytest.approx(1 - 1 / (sum(n) + 3))
    assert found["exact"] == found["free_exact"] == pytest.approx(2 / 3)
    assert found["by_position"] == pytest.approx([1, 1, 2 / 3, 1])
    assert found["free_accuracy"] == pytest.approx(1 - 1 / sum(n))
    assert found["free_by_position"] == pytest.approx([1, 2 / 3, 1])


@pytest.mark.parametrize(
    ("loss", "accuracy", "converged"), [(0.009, 0.9995, True), (0.011, 0.9995, False), (0.009, 0.998, False)]
)
def test_a_model_has_converged_by_its_loss_in_nats_and_its_accuracy(monkeypatch, loss, accuracy, converged):
    """The log is in bits, of which 0.01 nats are 0.0144; the first update below counts."""
    trained = SimpleNamespace(model=None, task=None, batch_size=2, parameters=5)
    curve = [(10, 0.02), (20, 0.0145), (30, 0.0144), (40, 0.02), (50, 0.001)]
    monkeypatch.setattr("lab.measure.accuracy.read_checkpoint", lambda path: trained)
    monkeypatch.setattr("lab.measure.accuracy.run_figures", lambda log: {"curves": {"train": curve}})
    found = {"loss_nats": loss, "accuracy": accuracy}
    monkeypatch.setattr("lab.measure.accuracy.copying", lambda *arguments: found)
    run = SimpleNamespace(checkpoint=Path("best.pt"), folder=Path("run"), device=torch.device("cpu"))
    expected = {"parameters": 5, **found, "converged": converged, "converged_at": 30}
    assert measure_copying(run) == expected


def test_the_log_weighs_tokens_by_tokens_and_sequences_by_sequences():
    """Two workers' batches with 4 of 6 sequences and 32 of 40 tokens right, then one with 2 and 8 of 8."""
    first = [
        {"loss": 8 * math.log(2), "nwrong": 6, "nexact": 1, "ntokens": 24, "nsentences": 3},
        {"loss": 32 * math.log(2), "nwrong": 2, "nexact": 3, "ntokens": 16, "nsentences": 3},
    ]
    second = [{"loss": 8 * math.log(2), "nwrong": 0, "nexact": 2, "ntokens": 8, "nsentences": 2}]
    with metrics.aggregate(new_root=True) as one, metrics.aggregate() as both:
        CopyCriterion.reduce_metrics(first)
        found = one.get_smoothed_values()
        CopyCriterion.reduce_metrics(second)
    assert found == {"loss": 1.0, "accuracy": 80.0, "exact": 66.6667}
    assert both.get_smoothed_values() == {"loss": 1.0, "accuracy": 83.3333, "exact": 75.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens_per_sample": 7}, "--tokens-per-sample is 7; a copy needs 8 tokens or more"),
        ({"copy_symbols": 0}, "--copy-symbols is 0; it must be 1 or more"),
        ({"train_samples": 0}, "--train-samples is 0"),
        ({"eval_samples": -1}, "--eval-samples is -1"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        CopyTask(CopyTaskConfig(**options))
    with pytest.raises(UserError, match="has no split dev; it has train, valid, test"):
        CopyTask(CopyTaskConfig()).load_dataset("dev")
