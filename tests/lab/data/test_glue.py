"""GLUE folders as fairseq's sentence_prediction task reads them, and bad starts."""

import json
import shutil

import pytest
from fairseq.data import Dictionary
from fairseq.tasks.sentence_prediction import SentencePredictionConfig, SentencePredictionTask

from lab.data import glue
from lab.data.tokenization import TextEncoder, encode_sentences, tokenizer_fingerprint
from lab.errors import UserError
from lab.glue_tasks import TASKS
from tests.helpers import encoders
from tests.helpers.prepared import manifest, preprocess, rows

FILES = {
    "CoLA": {
        "train.tsv": "x\t1\t\tThe cat sat .\nx\t0\t*\tSat cat the\nx\t1\t\tWho knows ?\n",
        "dev.tsv": "x\t1\t\tA dog .",
        "test.tsv": "index\tsentence\n0\tNobody said .\n",
    },
    "RTE": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA cat .\tIt sat .\tentailment\n"
        '1\t" Why ?\tWho\tnot_entailment\n2\tThe mat\tA mat\tentailment\n',
        "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n",
    },
    "STS-B": {
        "train.tsv": "sentence1\tsentence2\tscore\nA cat\tA dog\t2.5\nThe end\tThe end\t5.000\n",
        "dev.tsv": "sentence1\tsentence2\tscore\nIt sat .\tIt said .\t0\n",
    },
    "MNLI": {
        "train.tsv": "sentence1\tsentence2\tgold_label\nA\tB\tneutral\nC\tD\tcontradiction\n",
        "dev_matched.tsv": "sentence1\tsentence2\tgold_label\nA dog\tA cat\tentailment\n",
        "dev_mismatched.tsv": "sentence1\tsentence2\tgold_label\nWhy\tWho\tneutral\n",
    },
}


@pytest.fixture
def folder(tmp_path):
    """A few made-up examples in the layout of the download."""
    for task, files in FILES.items():
        (tmp_path / "glue" / task).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "glue" / task / name).write_text(text)
    return tmp_path / "glue"


@pytest.fixture
def prepare(tiny_pretraining):
    """Runs the script within this process."""

    def run(folder, dest, *options, tokenizer_from=tiny_pretraining):
        encoders.prepare("glue", folder, "--tokenizer-from", tokenizer_from, "--dest", dest, *options)

    return run


def opened(folder, task):
    """The task of fairseq's that fine-tunes on a prepared folder."""
    return SentencePredictionTask.setup_task(
        SentencePredictionConfig(
            data=str(folder),
            num_classes=task.classes,
            init_token=0,
            separator_token=2,
            no_shuffle=True,
            regression_target=task.is_regression,
            seed=1,
        )
    )


@pytest.mark.parametrize("name", FILES)
def test_fairseq_reads_what_was_written(folder, prepare, tmp_path, tiny_pretraining, name):
    prepare(folder, tmp_path / "out", "--task", name, "--partial")
    dest, task = tmp_path / "out" / name, TASKS[name]
    reader = opened(dest, task)
    encoder = TextEncoder.from_folder(dest)
    for split, file in task.files.items():
        if f"{file}.tsv" not in FILES[name]:
            continue
        header, *lines = FILES[name][f"{file}.tsv"].strip().split("\n")
        columns = header.split("\t")
        if name == "CoLA" and split != "test":
            columns, lines = ["source", "label", "mark", "sentence"], [header, *lines]
        examples = [dict(zip(columns, line.split("\t"), strict=True)) for line in lines]
        dataset = reader.load_dataset(split)
        assert len(dataset) == len(examples) == manifest(dest)["splits"][split]["examples"]
        for item, example in zip(dataset, examples, strict=True):
            sentences = [example[column] for column in task.sentences]
            row = encode_sentences(encoder, reader.source_dictionary, sentences)
            assert item["net_input.src_tokens"].tolist() == row.tolist()
            assert reader.source_dictionary.unk() not in row
            if split == "test":
                assert "target" not in item
            elif task.is_regression:
                assert item["target"] == [pytest.approx(float(example["score"]) / 5)]
            else:
                assert task.labels[int(item["target"])] == example[task.label]
        longest = max(len(item["net_input.src_tokens"]) for item in dataset)
        assert manifest(dest)["splits"][split]["longest"] == longest
    assert tokenizer_fingerprint(dest) == tokenizer_fingerprint(tiny_pretraining)
    assert manifest(dest)["tokenizer_fingerprint"] == tokenizer_fingerprint(dest)


def test_files_are_those_of_fairseq_preprocess(folder, prepare, tmp_path):
    prepare(folder, tmp_path / "out", "--task", "RTE", "--partial")
    dest = tmp_path / "out" / "RTE"
    encoder = TextEncoder.from_folder(dest)
    rows = [line.split("\t") for line in FILES["RTE"]["train.tsv"].strip().split("\n")[1:]]
    texts = {"input0": [encoder.encode(row[1]) for row in rows], "label": [row[3] for row in rows]}
    for part, lines in texts.items():
        text = tmp_path / f"{part}.txt"
        text.write_text("".join(f"{line}\n" for line in lines))
        preprocess({"train": text}, tmp_path / part, "--srcdict", dest / part / "dict.txt")
        for name in ("train.bin", "train.idx", "dict.txt"):
            assert (tmp_path / part / name).read_bytes() == (dest / part / name).read_bytes(), name


def test_what_the_manifest_says(folder, prepare, tmp_path):
    prepare(folder, tmp_path / "out", "--partial")
    facts = manifest(tmp_path / "out" / "CoLA")
    assert facts["task"] == "CoLA"
    assert facts["partial"] is True
    assert facts["labels"] == ["0", "1"]
    assert facts["metrics"] == ["matthews", "accuracy"]
    assert (facts["tokenizer"], facts["vocabulary"]) == ("sentencepiece", 340)
    assert facts["splits"]["train"]["labels"] == {"0": 1, "1": 2}
    assert facts["splits"]["train"]["file"] == "train.tsv"
    assert "labels" not in facts["splits"]["test"]
    assert set(manifest(tmp_path / "out" / "MNLI")["splits"]) == {"train", "valid", "valid1"}
    assert (tmp_path / "out" / "MNLI" / "label" / "dict.txt").read_text() == (
        "contradiction 1\nentailment 0\nneutral 1\n"
    )


def test_counts_are_checked_unless_partial(folder, prepare, tmp_path, capsys):
    with pytest.raises(UserError, match=r"train.tsv has 3 train examples of CoLA instead of 8,551; "):
        prepare(folder, tmp_path / "out", "--task", "CoLA")
    assert not (tmp_path / "out").exists()
    prepare(folder, tmp_path / "out", "--task", "CoLA", "--partial")
    assert "(PARTIAL)" in capsys.readouterr().out
    with pytest.raises(UserError, match="prepared from parts"):
        prepare(folder, tmp_path / "out", "--task", "CoLA")


def test_empty_split_is_refused_even_then(folder, prepare, tmp_path):
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n")
    with pytest.raises(UserError, match=r"has 0 valid examples of RTE instead of 277; get the whole"):
        prepare(folder, tmp_path / "out", "--task", "RTE", "--partial")


def test_whole_counts_are_not_partial():
    task = TASKS["QNLI"]
    whole = {
        split: glue.Examples(None, sentences=[("a", "b")] * sizes[-1], labels=[])
        for split, sizes in task.sizes.items()
    }
    assert not glue.is_partial(task, whole)
    del whole["test"]
    assert not glue.is_partial(task, whole)
    whole["valid"].sentences.pop()
    assert glue.is_partial(task, whole)
    del whole["valid"]
    assert glue.is_partial(task, whole)


def test_later_task_fails_and_earlier_ones_stay(folder, prepare, tmp_path, capsys):
    (folder / "RTE" / "dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\tA\tB\tyes\n")
    with pytest.raises(UserError, match=r"dev.tsv, line 2, has the label 'yes'"):
        prepare(folder, tmp_path / "out", "--partial")
    ready = tmp_path / "out" / "CoLA"
    assert not (tmp_path / "out" / "RTE").exists()
    assert not (tmp_path / "out" / "RTE.preparing").exists()
    before = {path: path.stat().st_mtime_ns for path in ready.rglob("*")}
    (folder / "RTE" / "dev.tsv").write_text(FILES["RTE"]["dev.tsv"])
    capsys.readouterr()
    prepare(folder, tmp_path / "out", "--partial")
    output = capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in ready.rglob("*")}
    assert "CoLA: train" not in output
    assert "RTE: train" in output
    assert f"{folder} has no SST-2, MRPC, QQP, QNLI, WNLI." in output


def test_task_made_from_other_files_is_refused(folder, prepare, tmp_path):
    prepare(folder, tmp_path / "out", "--task", "RTE", "--partial")
    before = manifest(tmp_path / "out" / "RTE")
    dev = folder / "RTE" / "dev.tsv"
    dev.write_text(FILES["RTE"]["dev.tsv"] + FILES["RTE"]["dev.tsv"].strip().split("\n")[-1] + "\n")
    with pytest.raises(UserError, match=r"prepared with another valid split \(dev.tsv\) than"):
        prepare(folder, tmp_path / "out", "--task", "RTE", "--partial")
    assert manifest(tmp_path / "out" / "RTE") == before


def test_missing_file_is_noticed_before_anything_is_made(folder, prepare, tmp_path):
    (folder / "RTE" / "train.tsv").unlink()
    with pytest.raises(UserError, match=r"holds no train.tsv \(or .tsv.gz\)$"):
        prepare(folder, tmp_path / "out", "--partial")
    assert not (tmp_path / "out").exists()


def test_another_tokeniser_is_refused(folder, prepare, tmp_path, tiny_pretraining):
    prepare(folder, tmp_path / "out", "--task", "CoLA", "--partial")
    other = tmp_path / "other"
    shutil.copytree(tiny_pretraining, other)
    lines = (other / "dict.txt").read_text().splitlines()
    (other / "dict.txt").write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    with pytest.raises(UserError, match="was not prepared with the tokeniser of"):
        prepare(folder, tmp_path / "out", "--task", "CoLA", "--partial", tokenizer_from=other)


def test_dictionary_that_lacks_a_piece_is_refused(folder, prepare, tmp_path, tiny_pretraining):
    other = tmp_path / "other"
    shutil.copytree(tiny_pretraining, other)
    lines = (other / "dict.txt").read_text().splitlines(keepends=True)
    (other / "dict.txt").write_text("".join(line.replace("\u2581cat ", "dog?!? ") for line in lines))
    facts = manifest(other)
    facts["files"]["dict.txt"] = (other / "dict.txt").stat().st_size
    (other / "preparation.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="a token that its dictionary lacks"):
        prepare(folder, tmp_path / "out", "--task", "CoLA", "--partial", tokenizer_from=other)


def test_folder_without_sub_words_is_refused(folder, prepare, tmp_path, tiny_pretraining):
    with pytest.raises(UserError, match="holds no prepared corpus"):
        prepare(folder, tmp_path / "out", tokenizer_from=tmp_path / "gone")
    words = tmp_path / "words"
    shutil.copytree(tiny_pretraining, words)
    (words / "sentencepiece.bpe.model").unlink()
    facts = manifest(words)
    del facts["files"]["sentencepiece.bpe.model"]
    (words / "preparation.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=r"no sub-word tokeniser; give a folder written by .*roberta.sh$"):
        prepare(folder, tmp_path / "out", "--partial", tokenizer_from=words)


def test_only_the_tasks_asked_for(folder, prepare, tmp_path):
    prepare(folder, tmp_path / "out", "--task", "STS-B", "--task", "RTE", "--partial")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"STS-B", "RTE"}


def test_full_disk_leaves_nothing(full_disk, refused, folder, tiny_pretraining, tmp_path):
    rows = "".join(f"x\t1\t\tThe cat {number} sat .\n" for number in range(2000))
    (folder / "CoLA" / "train.tsv").write_text(rows)
    arguments = [folder, "--tokenizer-from", tiny_pretraining, "--dest", tmp_path / "out"]
    with full_disk(20_000):
        sentence = refused("data-prep/glue.sh", *arguments, "--task", "CoLA", "--partial")
    assert "no space left on the disk of" in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_real_tasks(shared_dir, prepare, small_prepared, tmp_path):
    """Everything there is; the first and the last row of each split decode to the text."""
    source = shared_dir / "data" / "glue"
    prepare(source, tmp_path, "--partial", tokenizer_from=small_prepared)
    partial = {name for name in TASKS if manifest(tmp_path / name)["partial"]}
    assert partial == {"QQP", "MNLI", "QNLI"}
    for name, task in TASKS.items():
        dest = tmp_path / name
        encoder = TextEncoder.from_folder(dest)
        dictionary = Dictionary.load(str(dest / "input0" / "dict.txt"))
        for split, found in glue.find_sources(source / name, task, partial=True).items():
            examples = glue.read_examples(found, task, split)
            assert manifest(dest)["splits"][split]["examples"] == len(examples.sentences)
            for number in range(len(task.sentences)):
                dataset = rows(dest / f"input{number}", split)
                assert len(dataset) == len(examples.sentences)
                for index in (0, -1):
                    row = dataset[index % len(dataset)]
                    text = encoder.decode(" ".join(dictionary[token] for token in row[:-1]))
                    assert text == encoder.clean(examples.sentences[index][number])


@pytest.mark.slow
def test_real_task_without_partial(shared_dir, prepare, small_prepared, tmp_path):
    prepare(shared_dir / "data" / "glue", tmp_path, "--task", "MRPC", tokenizer_from=small_prepared)
    facts = manifest(tmp_path / "MRPC")
    assert facts["partial"] is False
    assert facts["splits"]["train"]["labels"] == {"0": 1_194, "1": 2_474}
