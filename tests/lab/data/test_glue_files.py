"""Reading GLUE's files: the real ones, and all the ways in which they can be wrong."""

import gzip
import json

import pytest

from lab.data import glue as glue_files
from lab.data.glue import SplitSource, find_sources, read_examples
from lab.errors import UserError
from lab.glue_tasks import TASKS, glue_task

HEADERS = {
    "SST-2": "sentence\tlabel",
    "MRPC": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "QQP": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "RTE": "index\tsentence1\tsentence2\tlabel",
    "STS-B": "index\tsentence1\tsentence2\tscore",
}

# From the README of the reference data.
REAL_LABELS = {
    "CoLA": ({"1": 6_023, "0": 2_528}, {"1": 721, "0": 322}),
    "SST-2": ({"1": 37_569, "0": 29_780}, {"1": 444, "0": 428}),
    "MRPC": ({"1": 2_474, "0": 1_194}, {"1": 279, "0": 129}),
    "RTE": ({"entailment": 1_249, "not_entailment": 1_241}, {"entailment": 146, "not_entailment": 131}),
    "WNLI": ({"1": 312, "0": 323}, {"1": 31, "0": 40}),
}
REAL_SIZES = {  # examples in the reference data, complete and sampled
    "CoLA": {"train": 8_551, "valid": 1_043, "test": 1_063},
    "SST-2": {"train": 67_349, "valid": 872, "test": 1_821},
    "MRPC": {"train": 3_668, "valid": 408, "test": 1_725},
    "STS-B": {"train": 5_749, "valid": 1_500, "test": 1_379},
    "QQP": {"train": 8_999, "valid": 1_000},
    "MNLI": {"train": 8_999, "valid": 1_000},
    "QNLI": {"train": 8_999, "valid": 5_463, "test": 5_463},
    "RTE": {"train": 2_490, "valid": 277, "test": 3_000},
    "WNLI": {"train": 635, "valid": 71, "test": 146},
}


@pytest.fixture
def glue(shared_dir):
    """The real files."""
    return shared_dir / "data" / "glue"


def counts(labels):
    return {label: labels.count(label) for label in set(labels)}


def read(path, name, split="train"):
    return read_examples(SplitSource(path), glue_task(name), split)


def write(tmp_path, text, name="train.tsv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", TASKS)
def test_real_files(glue, name):
    task = TASKS[name]
    sources = find_sources(glue / name, task, partial=True)
    examples = {split: read_examples(source, task, split) for split, source in sources.items()}
    assert {split: len(read.sentences) for split, read in examples.items()} == REAL_SIZES[name]
    for split, found in examples.items():
        assert {len(sentences) for sentences in found.sentences} == {len(task.sentences)}
        assert not any("\t" in sentence for sentences in found.sentences for sentence in sentences)
        assert found.empty_sentences == found.broken_rows == 0
        assert (found.labels is None) == (split == "test")
    for split, expected in zip(("train", "valid"), REAL_LABELS.get(name, ()), strict=False):
        assert counts(examples[split].labels) == expected
    if name == "QNLI":
        assert counts(examples["valid"].labels) == {"entailment": 2_702, "not_entailment": 2_761}
        assert all(len(found.sentences) in task.sizes[s] for s, found in examples.items() if s != "train")


def test_real_files_first_and_last(glue):
    cola = read(glue / "CoLA" / "dev.tsv", "CoLA", "valid")
    assert cola.sentences[0] == ("The sailors rode the breeze clear of the rocks.",)
    last = (glue / "CoLA" / "dev.tsv").read_text().split("\n")[-1].split("\t")
    assert (cola.sentences[-1], cola.labels[-1]) == ((last[3],), last[1])
    sst = read(glue / "SST-2" / "train.tsv.gz", "SST-2")
    assert (sst.sentences[0], sst.labels[0]) == (("hide new secretions from the parental units",), "0")
    assert sst.sha256 == "48eac26399f8456935f81dd9e3a745c1430adb6c62e233ccfe22db4a0d15d1d1"


def test_few_shot_files_have_the_columns_of_train(glue, tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.kshot.tsv").write_bytes((glue / "MNLI" / f"{split}.kshot.tsv").read_bytes())
    sources = find_sources(tmp_path, TASKS["MNLI"], partial=True)
    for split in ("train", "valid"):
        labels = read_examples(sources[split], TASKS["MNLI"], split).labels
        assert counts(labels) == dict.fromkeys(TASKS["MNLI"].labels, 80)


def test_both_forms_of_mrpc_give_the_same_rows(glue, tmp_path):
    """The Microsoft form: one file for train and dev in any order, here with CR LF, and dev's ids."""
    header, *train = (glue / "MRPC" / "train.tsv").read_text(encoding="utf-8-sig").splitlines()
    dev = (glue / "MRPC" / "dev.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]
    rows = train[:1000] + dev[:50] + train[1000:] + dev[50:]
    text = "".join(f"{line}\r\n" for line in [header, *rows])
    write(tmp_path, "\ufeff" + text, "msr_paraphrase_train.txt")
    write(tmp_path, (glue / "MRPC" / "dev_ids.tsv").read_bytes(), "dev_ids.tsv")
    test = (glue / "MRPC" / "test.tsv").read_text().replace("index\t", "Quality\t", 1)
    write(tmp_path, test, "msr_paraphrase_test.txt")
    task = TASKS["MRPC"]
    sources, others = (find_sources(folder, task, partial=False) for folder in (tmp_path, glue / "MRPC"))
    for split in ("train", "valid", "test"):
        ours, theirs = (read_examples(found[split], task, split) for found in (sources, others))
        assert ours.sentences == theirs.sentences
        assert ours.labels == theirs.labels
    (tmp_path / "dev_ids.tsv").unlink()
    with pytest.raises(UserError, match=r"holds no mrpc_dev_ids.tsv"):
        find_sources(tmp_path, task, partial=False)


@pytest.mark.parametrize("name", ["mrpc_dev_ids.tsv", "dev_ids.tsv"])
def test_pairs_of_mrpcs_dev_split_have_the_published_name_or_the_usual_one(name, tmp_path):
    write(tmp_path, "", "msr_paraphrase_train.txt")
    write(tmp_path, "1\t2\n3\t4\n", name)
    found = find_sources(tmp_path, TASKS["MRPC"], partial=True)
    assert found["valid"].ids == {("1", "2"), ("3", "4")} and found["valid"].inside


def test_quotes_mean_nothing(tmp_path):
    rows = ['"A quote\t0', 'never "closed\t1', '"another" one"\t1']
    found = read(write(tmp_path, "\n".join([HEADERS["SST-2"], *rows])), "SST-2")
    assert found.sentences == [('"A quote',), ('never "closed',), ('"another" one"',)]
    assert found.labels == ["0", "1", "1"]


@pytest.mark.parametrize("name", ["train.tsv", "train.tsv.gz"])
def test_byte_order_mark_line_ends_and_packing(tmp_path, name):
    content = f"\ufeff{HEADERS['MRPC']}\r\n1\t7\t8\tA b . \tC\u2028 d .\r\n".encode()
    path = write(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    found = read(path, "MRPC")
    assert (found.sentences, found.labels) == ([("A b .", "C\u2028 d .")], ["1"])


def test_columns_are_found_by_name(tmp_path):
    text = "label\tindex\tsentence2\tsentence1\nentailment\t0\tB\tA\n"
    assert read(write(tmp_path, text), "RTE").sentences == [("A", "B")]
    found = read(write(tmp_path, "index\tsentence\n0\tC\n", "test.tsv"), "CoLA", "test")
    assert (found.sentences, found.labels) == ([("C",)], None)
    found = read(write(tmp_path, "gj04\t0\t*\tD\ngj04\t1\t\tE"), "CoLA")
    assert (found.sentences, found.labels) == ([("D",), ("E",)], ["0", "1"])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("RTE", "index\tsentence1\tlabel\n", r"line 1, has no column 'sentence2'; RTE needs"),
        ("RTE", f"{HEADERS['RTE']}\n0\ta\tb\tentailment\n1\ta\tb\n", "line 3, has 3 columns instead of 4"),
        (
            "RTE",
            f"{HEADERS['RTE']}\n0\ta\tb\tneutral\n",
            "line 2, has the label 'neutral'; RTE has entailment",
        ),
        ("RTE", f"{HEADERS['RTE']}\n0\ta\t \tentailment\n", "line 2, has an empty sentence"),
        ("CoLA", "x\t1\t\ta\nx\t1\ta\n", "line 2, has 3 columns instead of 4"),
        ("CoLA", "x\ta\t\t1\n", "line 1, has the label 'a'"),
        ("STS-B", f"{HEADERS['STS-B']}\n0\ta\tb\t5.01\n", "line 2, has the score '5.01'; .* from 0 to 5"),
        ("STS-B", f"{HEADERS['STS-B']}\n0\ta\tb\tnan\n", "line 2, has the score 'nan'"),
        ("STS-B", f"{HEADERS['STS-B']}\n0\ta\tb\thigh\n", "line 2, has the score 'high'"),
        ("SST-2", b"sentence\tlabel\ncaf\xe9\t1\n", "line 2, is not UTF-8"),
        ("SST-2", "", "has no column 'sentence'"),
    ],
)
def test_wrong_files(tmp_path, name, text, expected):
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=expected) as error:
        read(path, name)
    assert str(error.value).startswith(str(path))
    assert not str(error.value).endswith(".")


def test_truncated_gzip(tmp_path):
    packed = gzip.compress(f"{HEADERS['SST-2']}\n{'some words to pack 1' * 50}\t1\n".encode())
    with pytest.raises(UserError, match="is damaged"):
        read(write(tmp_path, packed[:-9], "train.tsv.gz"), "SST-2")


def test_broken_rows_of_qqp_are_left_out_and_counted(tmp_path):
    """As fairseq's script for GLUE does; QQP has a few questions cut by line ends, and empty ones."""
    rows = ["1\t1\t2\tA ?\tB ?\t1", "2\t3\t4\tcut", "off ?\tC ?\t0", "3\t5\t6\t\tD ?\t0"]
    found = read(write(tmp_path, "\n".join([HEADERS["QQP"], *rows])), "QQP")
    assert found.sentences == [("A ?", "B ?"), ("", "D ?")]
    assert found.labels == ["1", "0"]
    assert (found.broken_rows, found.empty_sentences) == (2, 1)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"0": {"text_a": "a", "label": "0"}}',
        '{"0": {"text_a": "a", "text_b": null, "label": "0"}}',
    ],
)
def test_wrong_samples(tmp_path, content):
    with pytest.raises(UserError, match="is not a sample of a GLUE task"):
        read(write(tmp_path, content, "train.sample.json"), "QQP")


def test_label_of_a_sample_is_checked(tmp_path):
    row = {"text_a": "a", "text_b": "b", "label": "maybe"}
    path = write(tmp_path, json.dumps({"17": row}), "train.sample.json")
    with pytest.raises(UserError, match="entry 17, has the label 'maybe'"):
        read(path, "QQP")


def test_which_files_are_taken(tmp_path):
    task = TASKS["MNLI"]

    def names(partial=True):
        return {split: source.path.name for split, source in find_sources(tmp_path, task, partial).items()}

    with pytest.raises(UserError, match="holds no train.tsv"):
        names()
    write(tmp_path, "", "train.kshot.tsv")
    with pytest.raises(UserError, match="holds no train.tsv"):
        names()
    write(tmp_path, "", "dev.kshot.tsv")
    assert names() == {"train": "train.kshot.tsv", "valid": "dev.kshot.tsv"}
    with pytest.raises(UserError, match=r"holds no train.tsv .*; with --partial"):
        names(partial=False)
    write(tmp_path, "", "train.sample.json.gz")
    assert names()["train"] == "train.kshot.tsv"
    write(tmp_path, "", "dev.sample.json.gz")
    assert names() == {"train": "train.sample.json.gz", "valid": "dev.sample.json.gz"}
    write(tmp_path, "", "dev_matched.tsv")
    assert names() == {"train": "train.sample.json.gz", "valid": "dev_matched.tsv"}
    write(tmp_path, "", "train.tsv")
    assert names() == {"train": "train.tsv", "valid": "dev_matched.tsv"}
    with pytest.raises(UserError, match=r"holds no dev_mismatched.tsv"):
        names(partial=False)
    write(tmp_path, "", "dev_mismatched.tsv.gz")
    write(tmp_path, "", "test_matched.tsv")
    everything = {**names(), "valid1": "dev_mismatched.tsv.gz", "test": "test_matched.tsv"}
    assert names(partial=False) == everything


def test_table_of_tasks_agrees_with_the_reference_data(shared_dir):
    readme = (shared_dir / "data" / "README.md").read_text()
    for task in TASKS.values():
        if task.name not in ("QQP", "MNLI", "QNLI"):
            assert f"GLUE {task.name} train (complete" in readme
            assert task.sizes == {split: (size,) for split, size in REAL_SIZES[task.name].items()}
        assert set(task.sizes) == set(task.files)
        assert list(task.labels) == sorted(task.labels)
    for name in ("QQP", "MNLI", "QNLI"):
        assert f"of the {TASKS[name].sizes['train'][0]:,} of the full train.tsv" in readme


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("cola", "CoLA"), ("SST2", "SST-2"), ("STSB", "STS-B"), ("MRCP", "MRPC")]
)
def test_misspelt_task(wrong, nearest):
    with pytest.raises(ValueError, match=rf"no GLUE task {wrong} \(did you mean {nearest}\?\); there are"):
        glue_task(wrong)


def test_task_like_none():
    with pytest.raises(ValueError, match="no GLUE task 42; there are CoLA"):
        glue_task("42")


def test_endings_of_samples_come_in_pairs():
    assert [ending for ending in glue_files.SAMPLES if ending.endswith(".gz")] == [
        f"{ending}.gz" for ending in glue_files.SAMPLES if not ending.endswith(".gz")
    ]
