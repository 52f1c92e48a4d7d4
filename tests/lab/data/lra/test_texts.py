"""Text and Retrieval: bytes and characters there and back, splits, and bad files."""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import tarfile
from collections import Counter

import numpy as np
import pytest

from lab.data.lra import texts
from tests.helpers.prepared import contents


def as_bytes(row):
    return bytes((row - 4).astype(np.uint8))


@pytest.fixture
def reviews(tmp_path):
    """A folder of made-up reviews: `reviews[split, label, name] = text` writes one."""

    class Reviews(dict):
        folder = tmp_path / "aclImdb"

        def __setitem__(self, key, text):
            split, label, name = key
            place = self.folder / split / label
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(text)
            super().__setitem__(key, text)

    made = Reviews()
    for split in ("train", "test"):
        for label in ("neg", "pos"):
            made[split, label, "0_5.txt"] = b"so so"
    return made


def test_a_sample_is_taken_with_partial_only(prepare, refused, reviews, tmp_path):
    words = ("text", "--from", reviews.folder, "--dest", tmp_path / "lra", "--valid-fraction", 0)
    assert re.search("2 train, 2 test .* --partial", refused("data-prep/lra.sh", *words))
    assert not (tmp_path / "lra").exists()
    prepare(*words)
    assert re.search("from a sample; .* --partial", refused("data-prep/lra.sh", *words))


def test_bytes_of_the_samples_come_back(prepare, opened, samples, tmp_path):
    prepare("text", "--from", samples, "--dest", tmp_path, "--valid-fraction", 0)
    prepared = opened(tmp_path / "text")
    assert set(prepared.manifest["splits"]) == {"train", "test"}
    assert prepared.manifest["vocabulary"] == len(prepared.dictionary) == 4 + 256
    assert [prepared.dictionary[4 + byte] for byte in (0, 65, 255)] == ["0", "65", "255"]
    for split, size in (("train", 1_000), ("test", 500)):
        expected = Counter(
            (label, path.read_bytes()[:4_000])
            for label, name in enumerate(("neg", "pos"))
            for path in (samples / "aclImdb" / split / name).iterdir()
        )
        rows, labels = prepared.rows(split), prepared.labels(split)
        assert len(rows) == len(labels) == size
        found = zip(labels.tolist(), map(as_bytes, rows), strict=True)
        assert Counter(found) == expected


def test_held_out_reviews_are_a_tenth_of_each_class(prepare, opened, samples, tmp_path):
    prepare("text", "--from", samples, "--dest", tmp_path)
    prepared = opened(tmp_path / "text")
    splits = prepared.manifest["splits"]
    assert splits["train"]["classes"] == {"neg": 450, "pos": 450}
    assert splits["valid"]["classes"] == {"neg": 50, "pos": 50}
    assert splits["test"]["examples"] == 500 and prepared.manifest["seed"] == 42
    train = {as_bytes(row) for row in prepared.rows("train")}
    assert not any(as_bytes(row) in train for row in prepared.rows("valid"))


def test_characters_of_the_samples_come_back(prepare, opened, samples, tmp_path):
    prepare("text", "--from", samples, "--dest", tmp_path, "--pipeline", "state-space", "--valid-fraction", 0)
    prepared = opened(tmp_path / "text-state-space")
    dictionary = prepared.dictionary
    folder = samples / "aclImdb" / "train"
    read = [
        path.read_text(encoding="utf-8")[:4_095]
        for label in ("neg", "pos")
        for path in sorted((folder / label).iterdir(), key=lambda path: int(path.name.split("_")[0]))
    ]
    everything = "".join(read)
    known = {char for char in set(everything) if everything.count(char) >= 15}
    assert len(dictionary) == prepared.manifest["vocabulary"] == 4 + len(known)
    counts = [dictionary.count[index] for index in range(4, len(dictionary))]
    assert counts == sorted(counts, reverse=True)
    for text, row in zip(read, prepared.rows("train"), strict=True):
        assert row[-1] == dictionary.eos()
        expected = [f"U+{ord(char):04X}" if char in known else "<unk>" for char in text]
        assert [dictionary[index] for index in row[:-1]] == expected


@pytest.mark.parametrize("pipeline, most", [("skyformer", 4_000), ("state-space", 4_095)])
def test_cut_at_exactly_n(prepare, opened, reviews, tmp_path, pipeline, most):
    for extra in (-1, 0, 1):
        reviews["test", "pos", f"{10 + extra}_9.txt"] = b"a" * (most + extra - 1) + b"bcd"[: 1 + (extra > 0)]
    prepare("text", "--from", tmp_path, "--dest", tmp_path, "--pipeline", pipeline, "--valid-fraction", 0)
    prepared = opened(tmp_path / ("text" if pipeline == "skyformer" else "text-state-space"))
    end = pipeline == "state-space"
    lengths = [len(row) - end for row in prepared.rows("test")][-3:]
    assert lengths == [most - 1, most, most]
    assert prepared.manifest["splits"]["test"]["longest"] == prepared.manifest["length"] == most + end


def test_archive_and_folder_give_the_same(prepare, samples, shared_dir, tmp_path):
    archive = shared_dir / "data" / "lra" / "retrieval_pairs_sample.tar.gz"
    prepare("retrieval", "--from", samples, "--dest", tmp_path / "folder")
    prepare("retrieval", "--from", archive, "--dest", tmp_path / "archive")
    folder, packed = (contents(tmp_path / name) for name in ("folder", "archive"))
    manifests = [content.pop("retrieval/preparation.json").decode() for content in (folder, packed)]
    assert folder == packed
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in manifests[1]


def test_pairs_come_back(prepare, opened, samples, tmp_path):
    prepare("retrieval", "--from", samples, "--dest", tmp_path)
    prepare("retrieval", "--from", samples, "--dest", tmp_path, "--pipeline", "state-space")
    prepared, characters = opened(tmp_path / "retrieval"), opened(tmp_path / "retrieval-state-space")
    for split, name in (("train", "train"), ("valid", "eval"), ("test", "test")):
        lines = (samples / "tsv_data" / f"new_aan_pairs.{name}.tsv").read_text().splitlines()
        rows = [prepared.rows(split, f"input{number}") for number in (0, 1)]
        for line, label, first, second in zip(lines, prepared.labels(split), *rows, strict=True):
            cells = line.split("\t")
            assert label == float(cells[0])
            assert as_bytes(first).decode() == cells[3][:4_000]
            assert as_bytes(second).decode() == cells[4][:4_000]
    row = characters.rows("test", "input1")[0]
    assert len(row) == 4_000 and row[-1] == characters.dictionary.eos()
    text = "".join(chr(int(word[2:], 16)) for word in characters.words(row[:-1]))
    assert text == lines[0].split("\t")[4][:3_999]


def write_pairs(folder, **texts):
    for name in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(texts.get(name, b'1.0\ta\tb\t"one\ttwo\n'))
    return folder


def test_quotes_do_not_merge_rows(prepare, opened, tmp_path):
    write_pairs(tmp_path, train=b'1.0\ta\tb\t"one\ttwo\n0.0\tc\td\tthree"\tfour\n')
    prepare("retrieval", "--from", tmp_path, "--dest", tmp_path / "out")
    assert opened(tmp_path / "out" / "retrieval").labels("train").tolist() == [1, 0]


@pytest.mark.parametrize(
    "row, said",
    [
        (b"2.0\ta\tb\tone\ttwo\n", "'2.0' instead of 0.0 or 1.0"),
        (b"1.0\ta\tb\tone\n", "4 columns instead of 5"),
        (b"1.0\ta\tb\t\ttwo\n", "empty text"),
        (b"1.0\ta\tb\t\xff\xfe\ttwo\n", "not UTF-8"),
        (b"", "holds no pairs"),
    ],
)
def test_bad_pairs_are_refused(refusal, tmp_path, row, said):
    sentence = refusal("retrieval", "--from", write_pairs(tmp_path, eval=row))
    assert said in sentence and "new_aan_pairs.eval.tsv" in sentence


def test_bad_reviews_are_refused(refusal, reviews, tmp_path):
    reviews["train", "pos", "3_9.txt"] = b""
    arguments = ("text", "--from", tmp_path, "--valid-fraction", 0)
    assert "3_9.txt is empty" in refusal(*arguments)
    reviews["train", "pos", "3_9.txt"] = b"\xff"
    assert "3_9.txt is not UTF-8" in refusal(*arguments, "--pipeline", "state-space")


def test_missing_folder_of_reviews_is_named(refusal, reviews, tmp_path):
    for path in (tmp_path / "aclImdb" / "test" / "pos").iterdir():
        path.unlink()
    sentence = refusal("text", "--from", tmp_path)
    assert "test/pos" in sentence and "aclImdb_v1.tar.gz" in sentence


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_fractions_that_leave_a_split_empty(refusal, reviews, tmp_path, fraction):
    arguments = ("text", "--from", tmp_path, "--valid-fraction", fraction)
    assert f"--valid-fraction {fraction} of " in refusal(*arguments)


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open])
def test_checksums_of_archives_are_read(refusal, shared_dir, tmp_path, opener):
    with gzip.open(shared_dir / "data" / "lra" / "retrieval_pairs_sample.tar.gz") as archive:
        content = archive.read()
    with opener(tmp_path / "archive", "wb") as archive:
        archive.write(content)
    changed = bytearray((tmp_path / "archive").read_bytes())
    changed[-6] ^= 1
    (tmp_path / "archive").write_bytes(changed)
    assert "is damaged" in refusal("retrieval", "--from", tmp_path / "archive")


def test_wrong_archives_are_refused(refusal, shared_dir, tmp_path):
    archive = shared_dir / "data" / "lra" / "cifar-10-binary_sample.tar.gz"
    assert "aclImdb_v1.tar.gz" in refusal("text", "--from", archive)
    (tmp_path / "cut.tar.gz").write_bytes(archive.read_bytes()[:50_000])
    assert "damaged" in refusal("image", "--from", tmp_path / "cut.tar.gz")
    (tmp_path / "page.tar.gz").write_bytes(b"<html>403 Forbidden</html>")
    assert "not a tar archive" in refusal("image", "--from", tmp_path / "page.tar.gz")


def test_names_in_an_archive_cannot_write_anywhere(refusal, tmp_path):
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("../../basic_train.tsv")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"Sourc"))
    assert "does not begin" in refusal("listops", "--from", path)
    assert not (tmp_path.parent / "basic_train.tsv").exists()


def test_reviews_are_recognised_whatever_holds_them(reviews, prepare, opened, tmp_path, monkeypatch):
    lines = sorted(f"{hashlib.sha256(text).hexdigest()}  {'/'.join(key)}\n" for key, text in reviews.items())
    monkeypatch.setattr(texts, "PUBLISHED_REVIEWS", hashlib.sha256("".join(lines).encode()).hexdigest())
    words = ["text", "--from", reviews.folder, "--valid-fraction", 0, "--length", 3, "--dest", tmp_path]
    prepare(*words)
    found = opened(tmp_path / "text-3")
    assert found.manifest["verified"] is True and found.manifest["length"] == 3
    assert [as_bytes(row) for row in found.rows("test")] == [b"so ", b"so "]
    reviews["test", "pos", "0_5.txt"] = b"other"
    prepare(*words[:-1], tmp_path / "changed")
    assert opened(tmp_path / "changed" / "text-3").manifest["verified"] is None
