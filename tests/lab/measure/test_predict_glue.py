"""`predict` on the runs that finetune_glue.sh has kept: figures, files, and bad input."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lab.data.glue import Examples, write_labels
from lab.glue_tasks import TASKS
from lab.measure import glue as evaluation
from lab.measure import glue as predict_glue
from lab.measure.accuracy import most_frequent
from lab.measure.glue import best_weights, decide, read_targets, score
from lab.run.checkpoint import Checkpoint
from tests.helpers.encoders import ROWS

RUN = "0.01/seed1"
HEADER = "index\tsentence1\tsentence2\tlabel\n"


@pytest.fixture
def best(finetuned, tmp_path):
    """A copy of a run on RTE, to be spoilt."""
    shutil.copytree(finetuned / "RTE" / RUN, tmp_path / "run")
    return tmp_path / "run" / "checkpoint_best.pt"


@pytest.fixture
def rows(tmp_path):
    """Writes a file of rows of RTE."""

    def write(text):
        (tmp_path / "rows.tsv").write_text(text)
        return tmp_path / "rows.tsv"

    return write


@pytest.mark.parametrize("name", ["CoLA", "MRPC", "STS-B", "MNLI"])
def test_predictions_of_a_dev_file(call, finetuned, glue, tmp_path, capsys, name):
    """The raw file gives the figures that fine-tuning found on the prepared one."""
    task, run = TASKS[name], finetuned / name / RUN
    dev = glue.parent / "raw" / name / f"{task.files['valid']}.tsv"
    out = tmp_path / "out.tsv"
    call(predict_glue, run / "checkpoint_best.pt", "--task", name, "--input", dev, "--out", out)
    said = capsys.readouterr().out
    assert f"{name}: {ROWS['valid']} examples of {dev}" in said
    figures = json.loads(run.with_suffix(".json").read_text())["found"]["dev"]["valid"]
    assert ", ".join(f"{metric} {value:.2f}" for metric, value in figures.items()) in said
    header, *lines = (line.split("\t") for line in out.read_text().splitlines())
    assert header == ["index", "prediction"]
    assert [index for index, _ in lines] == [str(i) for i in range(ROWS["valid"])]
    if task.is_regression:
        assert len({float(value) for _, value in lines}) > 1
    else:
        assert {value for _, value in lines} <= set(task.labels)


def test_scores_are_fifths_in_the_data_and_whole_in_predictions(tmp_path):
    """Correlations are the same either way."""
    task, labels = TASKS["STS-B"], ["2.5", "5", "0"]
    examples = Examples(None, sentences=[("a", "b")] * 3, labels=labels)
    write_labels(tmp_path, task, {"valid": examples})
    assert (tmp_path / "label" / "valid.label").read_text().split() == ["0.5", "1.0", "0.0"]
    assert read_targets(tmp_path, "valid", task).tolist() == [2.5, 5.0, 0.0]
    assert predict_glue.targets_of(task, examples).tolist() == [2.5, 5.0, 0.0]
    assert decide(task, np.array([[0.5], [0.25]])).tolist() == [2.5, 1.25]
    assert predict_glue.as_text(task, np.array([2.5, 1.25])) == "index\tprediction\n0\t2.500\n1\t1.250\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [  # three of four right, one of two predicted ones right
        ("CoLA", {"matthews": 57.735, "accuracy": 75.0}),
        ("MRPC", {"f1": 66.6667, "accuracy": 75.0}),
        ("QQP", {"accuracy": 75.0, "f1": 66.6667}),
        ("RTE", {"accuracy": 75.0}),
    ],
)
def test_metrics(name, expected):
    """Of class 1 there are 1 in the targets and 2 in the predictions."""
    found = score(TASKS[name], np.array([1, 1, 0, 0]), np.array([1, 0, 0, 0]))
    assert list(found.items()) == list(expected.items())


def test_the_last_weights_replace_missing_best_ones_only(tmp_path):
    """They become the best ones where there are none, and are measured themselves beside best ones."""
    best, last = (tmp_path / f"checkpoint_{name}.pt" for name in ("best", "last"))
    last.write_text("last")
    assert best_weights(last) == best and best.read_text() == "last" and not last.exists()
    last.write_text("later")
    assert (best_weights(last), best_weights(best)) == (last, best)
    assert (best.read_text(), last.read_text()) == ("last", "later")


def test_the_majority_is_that_of_train(monkeypatch):
    targets = {"train": [1, 0, 1], "valid": [0, 0, 0, 1]}
    monkeypatch.setattr(evaluation, "read_targets", lambda folder, split, task: np.array(targets[split]))
    data = SimpleNamespace(folder=None, task=TASKS["RTE"])
    assert evaluation.majority_class(data) == {"accuracy": 25.0}
    assert evaluation.majority_class(SimpleNamespace(folder=None, task=TASKS["STS-B"])) is None
    assert most_frequent(np.array(targets["train"]), np.array(targets["valid"])) == 25.0


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_of_several_rates_the_first_is_recorded(tmp_path):
    for rates in ([0.25], [1e-5, 1e-6]):
        checkpoint = Checkpoint(tmp_path, {"cfg": {"optimization": {"lr": rates}}})
        assert evaluation.first_rate(checkpoint) == rates[0]


def test_correlations():
    """Pearson by hand: of (1, 2, 4) and (1, 2, 3) 3 / sqrt(14/3 * 2); Spearman takes the ranks."""
    found = score(TASKS["STS-B"], np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
    assert found == {"pearson": 98.1981, "spearman": 100.0}
    constant = score(TASKS["STS-B"], np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    assert constant == {"pearson": 0.0, "spearman": 0.0}


def test_test_file_has_no_figures(call, finetuned, glue, tmp_path, capsys):
    """Predictions lie beside the checkpoint, called after input and task."""
    checkpoint = shutil.copytree(finetuned / "MNLI" / RUN, tmp_path / "run") / "checkpoint_best.pt"
    test = glue.parent / "raw" / "MNLI" / "test_mismatched.tsv"
    call(predict_glue, checkpoint, "--task", "MNLI", "--input", test)
    assert "accuracy" not in capsys.readouterr().out
    written = (tmp_path / "run" / "test_mismatched.MNLI.predictions.tsv").read_text()
    assert len(written.splitlines()) == 1 + ROWS["test1"]


def test_a_broken_row_would_shift_the_index_of_the_others(refused, tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("index\tquestion1\tquestion2\n0\ta\tb\n1\ta\n2\tc\td\n")
    sentence = refused(predict_glue, "a.pt", "--task", "QQP", "--input", path, "--out", tmp_path / "out.tsv")
    assert "has 1 row with another number of columns" in sentence


def test_one_example_has_no_correlation(call, finetuned, tmp_path, capsys):
    path, out = tmp_path / "one.tsv", tmp_path / "out.tsv"
    path.write_text("sentence1\tsentence2\tscore\nThe cat .\tThe dog .\t2.5\n")
    checkpoint = finetuned / "STS-B" / RUN / "checkpoint_best.pt"
    call(predict_glue, checkpoint, "--task", "STS-B", "--input", path, "--out", out)
    assert "pearson 0.00, spearman 0.00" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 2


def test_long_sentence_is_cut_and_counted(call, best, rows, tmp_path, capsys):
    """Tokens behind the last position decide nothing; the other examples are as without it."""
    short, long = "0\tThe cat .\tThe dog .\tentailment\n", "The cat saw the dog . " * 20
    path, out = rows(f"{HEADER}{short}1\t{long}\tThe cat .\tentailment\n"), tmp_path / "out.tsv"
    call(predict_glue, best, "--task", "RTE", "--input", path, "--out", out)
    assert "1 example with more than 32 tokens cut to that length" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert len(lines) == 3
    call(predict_glue, best, "--task", "RTE", "--input", rows(HEADER + short), "--out", out)
    assert "longer" not in capsys.readouterr().out
    assert out.read_text().splitlines() == lines[:2]


@pytest.fixture
def predict(rows, tmp_path):
    """The arguments of a prediction for one row."""
    path = rows(HEADER + "0\tThe cat .\tThe dog .\tentailment\n")
    return ["--task", "RTE", "--input", path, "--out", tmp_path / "out.tsv"]


def test_head_is_missing_or_another_tasks(refused, best, predict, pretrained, finetuned, tmp_path):
    sentence = refused(predict_glue, pretrained / "checkpoint_last.pt", *predict)
    assert "has no classification head; fine-tune it first with scripts/finetune_glue.sh" in sentence
    for foreign, said in (
        ("[]", "glue_task.json holds no JSON object"),
        ('{"task": "CoLA"}', "give --task CoLA"),
    ):
        best.with_name("glue_task.json").write_text(foreign)
        assert said in refused(predict_glue, best, *predict)
    best.with_name("glue_task.json").write_text("{}")
    shutil.copy(finetuned / "MNLI" / RUN / "checkpoint_best.pt", best)
    assert "tells 3 classes apart, but RTE has 2" in refused(predict_glue, best, *predict)
    # Without the note beside it, the number of classes still tells.
    best.with_name("glue_task.json").unlink()
    assert "tells 3 classes apart, but RTE has 2" in refused(predict_glue, best, *predict)
    assert not (tmp_path / "out.tsv").exists()


def test_tokeniser_is_missing_or_damaged(refused, best, predict, tmp_path):
    (best.parent / "sentencepiece.bpe.model").write_bytes(b"no model")
    assert "carries a damaged tokeniser" in refused(predict_glue, best, *predict)
    (best.parent / "sentencepiece.bpe.model").unlink()
    assert "has no sub-word tokeniser" in refused(predict_glue, best, *predict)
    (best.parent / "dict.txt").unlink()
    assert "dict.txt is missing; it belongs beside the checkpoint" in refused(predict_glue, best, *predict)
    assert not (tmp_path / "out.tsv").exists()


def test_dictionary_of_another_tokeniser(refused, best, predict):
    dictionary = best.with_name("dict.txt")
    dictionary.write_text(dictionary.read_text() + "more 1\n")
    assert "it belongs to another tokeniser" in refused(predict_glue, best, *predict)


def test_half_written_checkpoint(call, refused, best, predict, tmp_path, capsys):
    """The complete one next to it is used, and named; without one the command stops."""
    whole = best.with_name("checkpoint_last.pt")
    shutil.copy(best, whole)
    call(predict_glue, whole, *predict)
    expected = (tmp_path / "out.tsv").read_bytes()
    best.write_bytes(best.read_bytes()[:-100])
    call(predict_glue, best, *predict)
    assert "checkpoint_best.pt is incomplete; taking checkpoint_last.pt" in capsys.readouterr().out
    assert (tmp_path / "out.tsv").read_bytes() == expected
    whole.unlink()
    sentence = refused(predict_glue, best, *predict)
    assert "checkpoint_best.pt is incomplete, without another checkpoint beside it" in sentence
    assert (tmp_path / "out.tsv").read_bytes() == expected


def test_weights_that_do_not_fit_their_settings(refused, best, predict):
    state = torch.load(best, weights_only=True)
    state["model"].pop("encoder.sentence_encoder.layers.0.self_attn.out_proj.bias")
    torch.save(state, best)
    assert "does not fit the model" in refused(predict_glue, best, *predict)
