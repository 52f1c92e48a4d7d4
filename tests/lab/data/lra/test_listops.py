"""ListOps: values, the generator's statistics, and the published files."""

from random import Random

import numpy as np
import pytest
from scipy import stats

from lab.data.lra.listops import (
    CLOSE,
    MIN,
    NUMBERS,
    Generator,
    ListOpsRows,
    draw_block,
    evaluate,
    unique_expressions,
)

HEADER = "Source\tTarget\r\n"
TARGET_SHARES = [17.04, 9.05, 7.59, 8.51, 8.99, 8.44, 7.74, 7.29, 8.63, 16.73]
"""Per cent of the targets in a full run of the original generator."""


def parse(text):
    return [NUMBERS[word] for word in text.split()]


@pytest.mark.parametrize(
    "text, value",
    [
        ("[MIN 3 9 2 ]", 2),
        ("[MAX 3 [MIN 9 8 ] 2 ]", 8),
        ("[MED 1 2 4 8 ]", 3),
        ("[MED 9 0 5 ]", 5),
        ("[MED 0 1 ]", 0),
        ("[SM 9 9 [SM 1 1 ] ]", 0),
    ],
)
def test_values(text, value):
    assert evaluate(parse(text)) == value


@pytest.mark.parametrize("text", ["[MIN 1 2", "1 ]", "[MIN ]", "1 2", "] ]"])
def test_brackets_that_do_not_match(text):
    with pytest.raises(ValueError):
        evaluate(parse(text))


@pytest.fixture(scope="module")
def drawn():
    """2,000 expressions and their values."""
    blocks = [draw_block(42, number) for number in range(2)]
    lengths = np.concatenate([block["lengths"] for block in blocks])
    symbols = np.concatenate([block["symbols"] for block in blocks])
    return np.split(symbols, np.cumsum(lengths)[:-1]), np.concatenate([block["values"] for block in blocks])


def test_generator_has_the_published_lengths(drawn):
    lengths = np.array([len(expression) for expression in drawn[0]])
    assert lengths.min() >= 501 and lengths.max() <= 1_999
    assert lengths.mean() == pytest.approx(1_035, abs=30)
    quantiles = np.quantile(lengths, [0.05, 0.25, 0.5, 0.75, 0.95])
    assert quantiles == pytest.approx([539, 701, 953, 1_309, 1_804], rel=0.05)
    without = [(expression != CLOSE).sum() for expression in drawn[0]]
    assert np.mean(without) == pytest.approx(888, abs=26)
    operators = [((expression >= MIN) & (expression < CLOSE)).sum() for expression in drawn[0]]
    assert np.mean(operators) == pytest.approx(147, abs=5)


def test_generator_has_the_published_targets_and_depth(drawn):
    expressions, values = drawn
    expected = np.array(TARGET_SHARES) / 100 * len(values)
    assert stats.chisquare(np.bincount(values, minlength=10), expected, sum_check=False).pvalue > 1e-3
    for expression in expressions:
        steps = np.where(expression == CLOSE, -1, np.where(expression >= MIN, 1, 0))
        assert np.cumsum(steps).max() == 9


def test_generated_values_are_right(drawn):
    for expression, value in zip(*drawn, strict=True):
        assert evaluate(expression.tolist()) == value


def test_every_draw_counts_arguments_and_operators_uniformly(drawn):
    operators = np.concatenate(drawn[0])
    operators = operators[(operators >= MIN) & (operators < CLOSE)]
    assert stats.chisquare(np.bincount(operators - MIN)).pvalue > 1e-3


def test_share_of_draws_that_are_kept():
    class Counting(Random):
        roots = 0

    random = Counting(7)
    generator = Generator(random)
    draw_node = generator._operator_node

    def count_roots(depth):
        Counting.roots += depth == 1
        return draw_node(depth)

    generator._operator_node = count_roots
    kept = 300
    for _ in range(kept):
        generator.draw()
    assert 0.25 * kept / Counting.roots == pytest.approx(0.082, abs=0.012)


def test_duplicates_are_left_out():
    block = {
        "symbols": np.array([1, 2, 1, 3, 3], dtype=np.uint8),
        "lengths": np.array([1, 1, 1, 1, 1]),
        "values": np.array([1, 2, 1, 3, 3]),
    }
    assert [value for value, _ in unique_expressions([block, block])] == [1, 2, 3]


@pytest.mark.parametrize(
    ("close_brackets", "end_token", "expected"),
    [
        (True, False, ["[MIN", "3", "4", "]"]),
        (True, True, ["[MIN", "3", "4", "</s>"]),
        (False, False, ["[MIN", "3", "4", "5"]),
        (False, True, ["[MIN", "3", "4", "</s>"]),
    ],
)
def test_a_row_has_no_more_tokens_than_the_length(close_brackets, end_token, expected):
    rows = ListOpsRows(4, close_brackets, end_token)
    row = rows.encode(np.array(parse("[MIN 3 4 ] 5 ]"), dtype=np.uint8))
    assert row.tolist() == [2 if word == "</s>" else 4 + NUMBERS[word] for word in expected]


def test_samples_have_their_targets_values(prepare, opened, samples, tmp_path):
    prepare("listops", "--from", samples, "--dest", tmp_path)
    prepared = opened(tmp_path / "listops")
    for split, name, size in (("train", "train", 400), ("valid", "val", 100), ("test", "test", 100)):
        lines = (samples / "listops-1000" / f"basic_{name}.tsv").read_text().splitlines()[1:]
        assert len(lines) == len(prepared.labels(split)) == size
        for line, row, label in zip(lines, prepared.rows(split), prepared.labels(split), strict=True):
            source, target = line.split("\t")
            words = [word for word in source.split() if word not in "()"]
            assert prepared.words(row) == words
            assert evaluate([NUMBERS[word] for word in words]) == int(target) == label
    assert prepared.manifest["vocabulary"] == len(prepared.dictionary) == 4 + 15
    assert prepared.manifest["origin"] == "sample" and prepared.manifest["close_brackets"] is True
    assert sum(prepared.manifest["splits"]["train"]["classes"].values()) == 400


def test_generator_draws_what_the_original_draws(drawn, samples):
    lengths = []
    for name in ("train", "val", "test"):
        lines = (samples / "listops-1000" / f"basic_{name}.tsv").read_text().splitlines()[1:]
        lengths += [sum(word not in "()" for word in line.split("\t")[0].split()) for line in lines]
    assert stats.ks_2samp(lengths, [len(expression) for expression in drawn[0]]).pvalue > 1e-3


def test_other_forms_of_the_rows(prepare, opened, samples, tmp_path):
    prepare("listops", "--from", samples, "--dest", tmp_path)
    prepare("listops", "--from", samples, "--dest", tmp_path, "--listops-drop-close-brackets")
    prepare("listops", "--from", samples, "--dest", tmp_path, "--pipeline", "state-space")
    plain, dropped, ended = (
        opened(tmp_path / name) for name in ("listops", "listops-no-brackets", "listops-state-space")
    )
    close = plain.dictionary.index("]")
    for row, less, more in zip(plain.rows("test"), dropped.rows("test"), ended.rows("test"), strict=True):
        assert less.tolist() == row[row != close].tolist()
        assert more.tolist() == [*row.tolist(), plain.dictionary.eos()]
    assert dropped.manifest["vocabulary"] == 4 + 14 and ended.manifest["end_token"] is True


@pytest.mark.parametrize(
    "text, said",
    [
        ("Target\tSource\r\n3\t( ( [MIN 3 ) 4 ) ]\r\n", "columns swapped"),
        (f"{HEADER}3\t( ( ( [MIN 3 ) 4 ) ] )\r\n", "columns swapped"),
        (f"{HEADER}[MIN 3 4\t3\r\n", "old preparation"),
        (f"{HEADER}MIN 3 4\t3\r\n", "old preparation"),
        (f"{HEADER}[MIN 3 4 ]\t10\r\n", "out of range"),
        (f"{HEADER}[MIN 3 4 ]\t-1\r\n", "out of range"),
        (f"{HEADER}[MIN 3 4 ]\t4\r\n", "has the value 3"),
        (f"{HEADER}[MIN 3 4 ] ]\t3\r\n", "closing bracket"),
        (f"{HEADER}[MIN 3 AVG ]\t3\r\n", "'AVG'"),
        (f"{HEADER}[MIN 3 4 ]\r\n", "columns instead"),
        ("[MIN 3 4 ]\t3\r\n", "it does not begin with Source, tab, Target"),
        (HEADER, "no expressions"),
    ],
)
def test_bad_files_are_refused(refusal, tmp_path, text, said):
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text(text if name == "val" else f"{HEADER}[MIN 3 4 ]\t3\r\n")
    sentence = refusal("listops", "--from", tmp_path)
    assert said in sentence and "basic_val.tsv" in sentence


def test_missing_split_is_refused(refusal, tmp_path):
    (tmp_path / "basic_train.tsv").write_text(f"{HEADER}[MIN 3 4 ]\t3\r\n")
    sentence = refusal("listops", "--from", tmp_path)
    assert "basic_val.tsv" in sentence and "lra_release.gz" in sentence
