"""Associative recall: samples, counted positions, refused settings, answers and the size of the state."""

import math

import pytest
import torch
from torch import nn

from lab.measure.accuracy import recalling, state_numbers
from tests.helpers.lm import PAD, build_lm
from user_dir.errors import UserError
from user_dir.tasks.recall import RecallTask, RecallTaskConfig
from user_dir.tasks.recall_data import RecallDataset, recall_dictionary, shares_of

KEYS, VALUES, FIRST = 20, 7, 4
DICTIONARY = recall_dictionary(KEYS, VALUES)


def rows(length=32, pairs=(4,), seed=1, split="train", count=64):
    data = RecallDataset(DICTIONARY, KEYS, length, pairs, count, seed, split)
    return [
        (item["source"].tolist(), item["target"].tolist()) for item in map(data.__getitem__, range(count))
    ]


@pytest.mark.parametrize(("length", "pairs"), [(4, 1), (5, 1), (32, 4), (33, 8), (80, 20)])
def test_each_key_is_asked_for_once_and_its_value_is_the_target(length, pairs):
    for source, target in rows(length, [pairs]):
        keys, values = source[: 2 * pairs : 2], source[1 : 2 * pairs : 2]
        assert len(source) == len(target) == length
        assert len(set(keys)) == pairs and all(FIRST <= key < FIRST + KEYS for key in keys)
        asked = [place for place, wanted in enumerate(target) if wanted != PAD]
        assert sorted(source[place] for place in asked) == sorted(keys)
        for place in asked:
            assert place >= 2 * pairs and target[place] == values[keys.index(source[place])]
        filling = [source[place] for place in range(2 * pairs, length) if place not in asked]
        assert all(FIRST + KEYS <= symbol < len(DICTIONARY) for symbol in filling)


def test_rows_draw_one_of_the_numbers_of_pairs():
    asked = [sum(wanted != PAD for wanted in target) for _, target in rows(pairs=(1, 2, 8), count=300)]
    assert set(asked) == {1, 2, 8} and min(map(asked.count, (1, 2, 8))) > 70


def test_most_questions_follow_soon():
    """The place i has a share of i^-0.99: among 28 places, most rows of 4 pairs ask in the first."""
    assert shares_of(3) == pytest.approx([x / (1 + 2**-0.99 + 3**-0.99) for x in (1, 2**-0.99, 3**-0.99)])
    asked = [target[8] != PAD for _, target in rows(64, count=300)]
    assert 0.6 < sum(asked) / 300 < 0.85  # evenly, it would be 4 of 28


def test_rows_depend_on_seed_and_split():
    assert rows() == rows() != rows(seed=2)
    assert rows() != rows(split="valid") != rows(split="test") != rows()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"recall_pairs": "17"}, "--recall-pairs is 17; rows of 64 tokens and 256 keys have room for 16"),
        ({"recall_pairs": "4,17"}, "have room for 16"),
        ({"recall_pairs": "4,0"}, "--recall-pairs is 4,0; it must be a number from 1, or several"),
        ({"recall_pairs": "few"}, "--recall-pairs is few; it must be"),
        ({"recall_pairs": ""}, "--recall-pairs is ; it must be"),
        ({"recall_keys": 4}, "have room for 4"),
        ({"recall_values": 0}, "--recall-values is 0"),
    ],
)
def test_what_does_not_fit_is_refused(given, named):
    with pytest.raises(UserError, match=named):
        RecallTask(RecallTaskConfig(**given))


class Knows(nn.Module):
    """Answers with the key's value, except for the key of index FIRST."""

    def forward(self, src_tokens, src_lengths=None, **unused):
        logits = torch.zeros(*src_tokens.shape, len(DICTIONARY))
        for row, tokens in enumerate(src_tokens.tolist()):
            for place, token in enumerate(tokens):
                behind = [*tokens, PAD][tokens.index(token) + 1] if token != FIRST and place else PAD
                logits[row, place, behind] = 1.0
        return (logits,)


def test_answers_are_counted_by_question_and_by_row():
    sizes = {"recall_keys": KEYS, "recall_values": VALUES, "recall_pairs": "2", "tokens_per_sample": 16}
    task = RecallTask(RecallTaskConfig(**sizes, eval_samples=40, seed=1))
    task.load_dataset("test")
    unknown = sum(FIRST in task.dataset("test")[i]["source"][:4].tolist() for i in range(40))
    assert 0 < unknown < 40
    found = recalling(Knows(), task, "test", 7, torch.device("cpu"))
    assert found["examples"] == 40 and found["counted"] == 80
    assert found["accuracy"] == 1 - unknown / 80 and found["exact"] == 1 - unknown / 40
    assert found["by_pairs"] == {"2": found["accuracy"]}
    # A right answer has a logit of 1 and all others 0; a wrong one has the 1 elsewhere.
    assert found["loss_nats"] == pytest.approx(math.log(math.e + len(DICTIONARY) - 1) - found["accuracy"])


def test_answers_are_counted_by_the_number_of_pairs():
    sizes = {"recall_keys": KEYS, "recall_values": VALUES, "recall_pairs": "1,4", "tokens_per_sample": 16}
    task = RecallTask(RecallTaskConfig(**sizes, eval_samples=60, seed=1))
    task.load_dataset("test")
    asked, unknown = {1: 0, 4: 0}, {1: 0, 4: 0}
    for row in map(task.dataset("test").__getitem__, range(60)):
        pairs = int(row["target"].ne(PAD).sum())
        asked[pairs] += pairs
        unknown[pairs] += FIRST in row["source"][: 2 * pairs].tolist()
    assert unknown[4] > 0
    found = recalling(Knows(), task, "test", 7, torch.device("cpu"))
    assert found["by_pairs"] == pytest.approx({str(p): 1 - unknown[p] / asked[p] for p in (1, 4)})
    assert found["counted"] == sum(asked.values())


def test_the_state_of_linear_attention_is_counted_and_constant():
    model = build_lm("linear_transformer_lm")
    short, long = (torch.full((1, length), 5) for length in (3, 20))
    assert state_numbers(model, short) == state_numbers(model, long) == 2 * 2 * 12 * 13
    plan = {"decoder_attention": "softmax"}
    assert state_numbers(build_lm("linear_transformer_lm", **plan), long) == 2 * 2 * 20 * 24


class Remembers(nn.Module):
    """Leaves a state with 3 numbers that two entries share, 4 in a nested one, and integers."""

    def forward(self, row, incremental_state):
        shared = torch.zeros(3)
        inner = {"sum": torch.ones(2, 2), "seen": row}
        incremental_state.update(first={"sum": shared, "count": 2}, second={"sum": shared, "inner": inner})


def test_what_two_entries_of_a_state_share_counts_once_and_integers_do_not():
    assert state_numbers(Remembers(), torch.full((1, 5), 5)) == 3 + 4
