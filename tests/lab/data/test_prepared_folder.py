"""The content of a prepared folder, read back with fairseq's own readers."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from array import array
from functools import partial
from itertools import zip_longest

import pytest
import sentencepiece
from fairseq import tasks
from fairseq.data import Dictionary

from conventions import content
from conventions.content import check_prepared
from lab.data.preparation import write_manifest
from lab.data.prepared import CONTENT, HEADER, MAGIC, identify, open_prepared, read_manifest, same_data
from lab.errors import UserError
from lab.files import ROOT, RUN_MARK, sha256_of
from tests.helpers.prepared import as_wikitext2, manifest, preprocess, rows, write_splits
from user_dir.checks.training_data import keep_data_record
from user_dir.fairseq_patches.trainer import note_training_data
from user_dir.tasks.image_data import open_image_data
from user_dir.tasks.lra_data import open_lra_data

SPLITS = ("train", "valid", "test")


@pytest.mark.slow
def test_wikitext2_words(call, wikitext2, tmp_path):
    dest = tmp_path / "wikitext-2 words"
    call("data-prep/wikitext.sh", "wikitext-2", "--from", wikitext2, "--dest", dest)
    facts = manifest(dest)
    assert facts["verified"] is True
    assert facts["vocabulary"] == 33_280
    words = {"train": 2_088_628, "valid": 217_646, "test": 245_569}
    for split, expected in words.items():
        assert facts["splits"][split]["words"] == expected
        assert facts["splits"][split]["tokens"] == expected
    dictionary = Dictionary.load(str(dest / "dict.txt"))
    # 33,278 types with <unk> and the end of line, which are two of fairseq's four symbols.
    assert len(dictionary) == 33_278 - 2 + 4
    assert not any(symbol.startswith("madeupword") for symbol in dictionary.symbols)
    dataset = rows(dest, "test")  # its sizes die with it
    assert dataset.sizes.sum() == words["test"]
    rows_of_splits = {f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx")}
    written = {path.name for path in dest.iterdir()}
    assert written == {RUN_MARK, "dict.txt", "preparation.json"} | rows_of_splits


def test_files_are_those_of_fairseq_preprocess(call, small_corpus, tmp_path):
    dest = tmp_path / "data"
    call(*as_wikitext2(small_corpus, dest))
    preprocess({split: small_corpus / f"{split}.txt" for split in SPLITS}, tmp_path / "theirs")
    for name in ("dict.txt", *(f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx"))):
        assert (dest / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


@pytest.mark.longest
@pytest.mark.slow
@pytest.mark.exhaustive
def test_wikitext2_sentencepiece(call, wikitext2, tmp_path):
    dest = tmp_path / "data"
    arguments = ["wikitext-2", "--from", wikitext2, "--dest", dest, "--tokenizer", "sentencepiece"]
    call("data-prep/wikitext.sh", *arguments)
    facts = manifest(dest)
    assert facts["vocabulary"] == 4000
    tokens = {split: facts["splits"][split]["tokens"] for split in SPLITS}
    assert tokens == {"train": 2_980_490, "valid": 297_649, "test": 333_445}


def test_dictionary_of_wikitext103s_size_is_the_models(call, tmp_path):
    # As many types as WikiText-103 has: 267,735, of which <unk> and the end of line are two.
    words = [f"word{number}" for number in range(267_735 - 2)]
    lines = (" ".join([*words[i : i + 500], "<unk>\n"]) for i in range(0, len(words), 500))
    other = "word1 word2\n"
    source = write_splits(tmp_path / "source", train="".join(lines), valid=other, test=other)
    arguments = ["wikitext-103", "--from", source, "--dest", tmp_path / "data"]
    call("data-prep/wikitext.sh", *arguments, "--allow-unverified")
    assert manifest(tmp_path / "data")["vocabulary"] == 267_744
    dictionary = Dictionary.load(str(tmp_path / "data" / "dict.txt"))
    assert len(dictionary) == 267_744
    assert [s for s in dictionary.symbols if s.startswith("madeup")] == [
        f"madeupword{number:04d}" for number in range(7)
    ]


def test_counts_are_fairseqs(small_prepared, small_texts):
    facts = manifest(small_prepared)
    dictionary = Dictionary.load(str(small_prepared / "dict.txt"))
    assert facts["vocabulary"] == len(dictionary) == 1000
    for split, lines in small_texts.items():
        assert facts["splits"][split]["words"] == sum(len(line.split()) + 1 for line in lines)
        dataset = rows(small_prepared, split)
        assert facts["splits"][split]["tokens"] == dataset.sizes.sum()
        assert len(dataset) == len(lines)


def test_rows_decode_to_the_text(small_prepared, small_texts):
    """Also through rare characters, which are spelt in bytes, and without any unknown piece."""
    dictionary = Dictionary.load(str(small_prepared / "dict.txt"))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(small_prepared / "sentencepiece.bpe.model")
    )
    spelt = 0
    for split, lines in small_texts.items():
        for row, line in zip_longest(rows(small_prepared, split), lines):
            assert row[-1] == dictionary.eos()
            assert dictionary.unk() not in row
            pieces = [dictionary[index] for index in row[:-1]]
            spelt += sum(piece.startswith("<0x") for piece in pieces)
            assert processor.decode_pieces(pieces) == " ".join(line.split())
    assert spelt > 0


def test_unknown_word_of_wikitext_is_one_piece(small_prepared, small_texts):
    dictionary = Dictionary.load(str(small_prepared / "dict.txt"))
    index = dictionary.index("\u2581<unk>")
    assert index != dictionary.unk()
    for split, lines in small_texts.items():
        found = sum(int((row == index).sum()) for row in rows(small_prepared, split))
        assert found == sum(line.split().count("<unk>") for line in lines)


def test_dictionary_is_ordered_by_frequency(small_prepared):
    lines = (small_prepared / "dict.txt").read_text(encoding="utf-8").splitlines()
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == manifest(small_prepared)["splits"]["train"]["tokens"] - 3760


def test_fairseqs_own_sentencepiece_reads_the_model(small_prepared):
    from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE, SentencepieceConfig

    model = str(small_prepared / "sentencepiece.bpe.model")
    bpe = SentencepieceBPE(SentencepieceConfig(sentencepiece_model=model))
    text = "The <unk> was first seen in 1 @,@ 937 , and again ."
    dictionary = Dictionary.load(str(small_prepared / "dict.txt"))
    encoded = bpe.encode(text)
    assert dictionary.unk() not in dictionary.encode_line(encoded, add_if_not_exist=False)
    assert bpe.decode(encoded) == text


def test_vocabulary_of_another_folder(call, refused, small_corpus, small_prepared, tmp_path, capsys):
    text = "Something else entirely , 你好 .\n"
    source = write_splits(tmp_path / "source", train=text, valid=text, test=text)
    dest, words = tmp_path / "data", tmp_path / "words"
    call(*as_wikitext2(source, dest), "--vocabulary-from", small_prepared)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        assert (dest / name).read_bytes() == (small_prepared / name).read_bytes()
    call(*as_wikitext2(source, words))
    capsys.readouterr()
    sentence = refused(*as_wikitext2(source, dest), "--vocabulary-from", words)
    assert "is ready" not in capsys.readouterr().out
    assert f"{dest} was not prepared with the vocabulary of {words}" in sentence
    sentence = refused(*as_wikitext2(source, tmp_path / "other"), "--vocabulary-from", source)
    assert "--dest" not in sentence and "name a folder that a script of data-prep/ has written" in sentence
    assert "holds no prepared corpus" in sentence


def test_data_of_another_kind(call, refused, small_corpus, tmp_path):
    """Images in place of a vocabulary, and in place of a Long Range Arena task."""
    images = tmp_path / "listops"
    call("data-prep/images.sh", "digits", "--dest", images)
    sentence = refused(*as_wikitext2(small_corpus, tmp_path / "data"), "--vocabulary-from", images)
    assert f"{images} holds no prepared corpus" in sentence
    sentence = refused("data-prep/lra.sh", "listops", "--generate", "--dest", tmp_path)
    assert f"{images} was prepared without task, not with task listops" in sentence


@pytest.mark.parametrize(("size", "bound"), [(100, "or more"), (900_000, "or less")])
def test_impossible_vocabulary(refused, call, small_corpus, tmp_path, size, bound):
    """The named bound works, and nothing beyond it."""
    words = [*as_wikitext2(small_corpus, tmp_path / "out" / "data"), "--tokenizer", "sentencepiece"]
    sentence = refused(*words, "--vocab-size", size)
    assert f"sentencepiece cannot make a vocabulary of {size:,} from this text; give --vocab-size" in sentence
    possible = int(re.fullmatch(rf".* --vocab-size (\d+) {bound}", sentence)[1])
    assert bound in refused(*words, "--vocab-size", possible + (1 if bound == "or less" else -1))
    assert not (tmp_path / "out").exists()
    call(*words, "--vocab-size", possible)


@pytest.mark.parametrize("name", ["preparation.json", "dict.txt", "train.idx", "label/train.bin"])
def test_a_pipe_in_a_folder_of_data_is_refused(name, tmp_path):
    """Everything that opens the folder refuses it: to read a pipe would wait without end."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    task = Namespace(_name="language_modeling", data=str(tmp_path))
    opens = (
        partial(open_prepared, splits=("train",)),
        identify,
        read_manifest,
        open_lra_data,
        open_image_data,
    )
    for read in (*opens, lambda folder: tasks.setup_task(task)):
        with pytest.raises(UserError, match=f"{name} is a pipe or a device where a file belongs"):
            read(tmp_path)


def test_a_manifest_is_read_whatever_the_locale(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    write_manifest(tmp_path, {"corpus": "Möwe", "splits": {}})
    reads = "from pathlib import Path; from lab.data.prepared import open_prepared; "
    shows = f"print(ascii(open_prepared(Path({str(tmp_path)!r}), ()).manifest['corpus']))"
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", reads + shows]
    read = subprocess.run(command, env=ascii_only, cwd=ROOT, capture_output=True, text=True)
    assert read.stdout.strip() == ascii("Möwe"), read.stderr


@pytest.mark.parametrize(
    ("code", "number", "wrong"),
    [
        (0, 1, "is not the index of a prepared corpus"),
        *((4, number, "is truncated") for number in (0, 2, 2**50, 2**62)),
    ],
)
def test_an_index_whose_header_is_damaged_is_refused(code, number, wrong, tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    (tmp_path / "train.bin").write_bytes(bytes(4))
    one_row = array("i", [1]).tobytes() + bytes(8)
    (tmp_path / "train.idx").write_bytes(HEADER.pack(MAGIC, 1, 4, 1) + one_row)
    assert open_prepared(tmp_path, ("train",)).tokens("train") == 1
    (tmp_path / "train.idx").write_bytes(HEADER.pack(MAGIC, 1, code, number) + one_row)
    with pytest.raises(UserError, match=f"train.idx {wrong}; prepare it again with a script of data-prep/$"):
        open_prepared(tmp_path, ("train",))


def test_files_without_a_manifest_are_read_again_only_when_they_change(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(content, "sha256_of", lambda path: read.append(path.name) or sha256_of(path))
    for name in ("train.idx", "valid.idx"):
        (tmp_path / name).write_text(name)
    first = identify(tmp_path)
    assert identify(tmp_path) == first and read == ["train.idx", "valid.idx"]
    (tmp_path / "valid.idx").write_text("another")
    os.utime(tmp_path / "valid.idx", ns=(1, 1))
    second = identify(tmp_path)
    assert read[2:] == ["valid.idx"]
    assert first["files"]["train.idx"] == second["files"]["train.idx"]
    assert not same_data(first, second)


def test_images_of_equal_number_are_known_by_their_content(tmp_path):
    found = []
    for pixels in ("black", "white"):
        (tmp_path / pixels).mkdir()
        (tmp_path / pixels / "train.images.npy").write_text(pixels)
        write_manifest(tmp_path / pixels, {"levels": 256, "splits": {"train": {"images": 1}}})
        found.append(identify(tmp_path / pixels))
    assert not same_data(*found)
    assert same_data(*({key: value for key, value in one.items() if key != CONTENT} for one in found))


@pytest.mark.parametrize("changed", ["train.idx", "train.bin", "dict.txt"])
def test_data_without_a_manifest_are_known_by_all_of_their_files(changed, tmp_path):
    for name in ("train.idx", "train.bin", "dict.txt"):
        (tmp_path / name).write_text(name)
    first = identify(tmp_path)
    (tmp_path / changed).write_text("another")
    assert not same_data(first, identify(tmp_path))


@pytest.fixture
def folder(tmp_path):
    """Prepared data, with a manifest that knows their content."""
    for split in SPLITS:
        for kind in ("bin", "idx"):
            (tmp_path / f"{split}.{kind}").write_bytes(bytes(9))
    (tmp_path / "dict.txt").write_text("a 1\n")
    write_manifest(tmp_path, {"splits": {split: {} for split in SPLITS}})
    return tmp_path


def test_a_file_changed_since_its_preparation_is_named(folder, monkeypatch):
    for name, split, other in (("train.bin", "train", "test"), ("dict.txt", "test", None)):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"b" + content[1:])  # of the same size
        with pytest.raises(UserError, match=f"{name} has changed since it was prepared"):
            check_prepared(folder, split)
        if other:
            check_prepared(folder, other)
        (folder / name).write_bytes(content)
        check_prepared(folder, *SPLITS)
    write_manifest(folder, {"splits": {}})
    monkeypatch.setattr("conventions.content.sha256_of", pytest.fail)
    check_prepared(folder, *SPLITS)  # nothing is newer than the manifest
    (folder / "preparation.json").write_text('{"splits": {}, "files": {}}')  # of an earlier version
    check_prepared(folder, *SPLITS)


@pytest.mark.parametrize("prepared", [True, False], ids=["data-prep", "fairseq-preprocess"])
def test_a_run_resumes_on_the_data_that_it_began_with(prepared, folder, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    if not prepared:
        (folder / "preparation.json").unlink()
    (folder / "train.label.npy").write_bytes(b"labels")
    keep_data_record([folder], run, resumes=False)
    with monkeypatch.context() as patch:
        patch.setattr("conventions.content.sha256_of", pytest.fail)
        keep_data_record([folder], run, resumes=True)  # reads no file
    (folder / "train.bin").touch()
    keep_data_record([folder], run, resumes=True)
    (folder / "train.bin").write_bytes(b"b" * 9)
    with pytest.raises(UserError, match=r"train.bin has changed since the run in .* --allow-changed data$"):
        keep_data_record([folder], run, resumes=True)
    keep_data_record([folder], run, resumes=True, allowed=True)
    keep_data_record([folder], run, resumes=True)
    old = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps({key: old[key] for key in ("data", "fingerprint")}))
    keep_data_record([folder], run, resumes=True)  # begun by an earlier version
    for name in ("train.label.npy", "train.idx"):  # what even such a record tells apart
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(b"b" * 9)
        with pytest.raises(UserError, match="holds a run on other training data"):
            keep_data_record([folder], run, resumes=True)
        (folder / name).write_bytes(before)
    (run / "data.json").write_text("[]")
    with pytest.raises(UserError, match="does not name the data of the run"):
        keep_data_record([folder], run, resumes=True)


def test_a_run_inside_its_data_resumes(folder):
    """Its log is called train.log; --log-file may name another place in the folder."""
    run = folder / "run"
    run.mkdir()
    for log in (run / "train.log", folder / "train.log"):
        log.write_text("begun")
    keep_data_record([folder], run, resumes=False)
    for log in (run / "train.log", folder / "train.log"):
        log.write_text("begun and ended")
    keep_data_record([folder], run, resumes=True)
    assert json.loads((run / "data.json").read_text())["files"].keys() == {"train.bin", "train.idx"}


def test_a_run_on_several_folders_resumes_on_all_of_them(folder, tmp_path_factory):
    run, *others = map(tmp_path_factory.mktemp, ("run", "second", "third"))
    for other in others:
        (other / "train.idx").write_bytes(other.name.encode())
        (other / "train.bin").write_bytes(bytes(9))

    def train(*folders):
        task = Namespace(data=":".join(map(str, folders)))
        note_training_data(
            Namespace(task=task, checkpoint=Namespace(reset_dataloader=False), model=None), run
        )

    train(folder, others[0])
    (run / "checkpoint_last.pt").touch()
    train(folder, others[0])
    for changed in ([folder], [folder, others[1]], [others[0], folder], [folder, *others]):
        with pytest.raises(UserError, match="holds a run on other training data .*:.*second"):
            train(*changed)
    (others[0] / "train.bin").write_bytes(b"b" * 9)
    with pytest.raises(UserError, match=r"second\d*/train.bin has changed since the run in"):
        train(folder, others[0])
