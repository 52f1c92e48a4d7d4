"""Which files are taken for WikiText, and which are not."""

import gzip
import shutil
import zipfile

import pytest

from lab.data import causal_lm, texts
from lab.data.preparation import Split
from lab.data.published import TEXTS
from tests.helpers.prepared import as_wikitext2, manifest


def read(source, corpus, split, target):
    """A split as written to `target`, and its description."""
    reader = texts.SplitReader(source, corpus, split)
    causal_lm.write_lines(reader, target)
    return reader.text()


@pytest.mark.parametrize(
    ("corpus", "split"),
    [(corpus, split) for corpus in TEXTS for split in ("train", "valid", "test")],
)
def test_published_files_pass(shared_dir, tmp_path, corpus, split):
    source = shared_dir / "data" / corpus
    if not (source / f"wiki.{split}.tokens.gz").exists():
        pytest.skip(f"{corpus}'s {split} split is not among the reference data")
    text = read(source, corpus, split, tmp_path / "text")
    assert text.words == TEXTS[corpus].entry["splits"][split]["words"]
    assert texts.compare(corpus, split, text) == ""


def test_table_is_that_of_the_reference_data(shared_dir):
    readme = (shared_dir / "data" / "README.md").read_text()
    for corpus, found in TEXTS.items():
        for split, published in found.entry["splits"].items():
            if "sha256" in published:
                name = f"{corpus}/wiki.{split}.tokens"
                assert f"`{name}`: `{published['sha256']}`" in readme
                assert f"{published['words']:,} tokens" in readme.split(f"{name}.gz`")[1]


def test_one_changed_letter_is_noticed(wikitext2, tmp_path):
    content = gzip.decompress((wikitext2 / "wiki.valid.tokens.gz").read_bytes())
    (tmp_path / "valid.txt").write_bytes(content.replace(b"Homarus", b"Homerus", 1))
    text = read(tmp_path, "wikitext-2", "valid", tmp_path / "text")
    assert text.words == 217_646
    assert "sha256" in texts.compare("wikitext-2", "valid", text)


def test_wikitext103_train_is_checked_by_count_and_sha1():
    published = TEXTS["wikitext-103"].entry["splits"]["train"]
    right = Split(103_227_021, 0, "", published["sha1"])
    assert texts.compare("wikitext-103", "train", right) == ""
    assert "103,227,021" in texts.compare("wikitext-103", "train", Split(5, 0, "", ""))
    other = Split(103_227_021, 0, "", "0" * 40)
    assert "sha1" in texts.compare("wikitext-103", "train", other)


@pytest.mark.parametrize("layout", ["folder", "subfolder", "zip"])
def test_layouts_of_a_source(tmp_path, layout):
    source = tmp_path / "source"
    inner = source / "wikitext-2" if layout == "subfolder" else source
    inner.mkdir(parents=True)
    (inner / "wiki.test.tokens").write_bytes(b" \n = A title = \n")
    if layout == "zip":
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.write(inner / "wiki.test.tokens", "wikitext-2/wiki.test.tokens")
        source = tmp_path / "a.zip"
    text = read(source, "wikitext-2", "test", tmp_path / "text")
    assert text.words == 6
    assert (tmp_path / "text").read_bytes() == b"\n= A title =\n"


def test_truncated_split_is_refused_and_leaves_nothing(refused, wikitext2, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "out" / "data"
    source.mkdir()
    for split in ("train", "valid"):
        shutil.copy(wikitext2 / f"wiki.{split}.tokens.gz", source)
    content = gzip.decompress((wikitext2 / "wiki.test.tokens.gz").read_bytes())
    (source / "wiki.test.tokens").write_bytes(content[: len(content) // 2])
    sentence = refused("data-prep/wikitext.sh", "wikitext-2", "--from", source, "--dest", dest)
    assert "test split has 123,142" in sentence
    assert "245,569" in sentence
    assert "--allow-unverified" in sentence
    assert not dest.parent.exists()


# Without the time of packing, of which the test's name would be made: every process must give it the same.
DAMAGED = gzip.compress(b"Some words .\n" * 99, mtime=0)[:-20]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("wiki.valid.tokens.gz", DAMAGED, "damaged in its valid split"),
        ("valid.txt", b"caf\xe9\n", "line 1 of the valid split is not UTF-8"),
        ("valid.txt", b" \n\n", "is empty"),
        ("test.txt", b"", "holds no valid split of wikitext-2 (none of wiki.valid.tokens, "),
    ],
)
def test_splits_that_cannot_be_read(refused, tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    dest = tmp_path / "data"
    assert expected in refused("data-prep/wikitext.sh", "wikitext-2", "--from", tmp_path, "--dest", dest)
    assert not dest.exists()


@pytest.mark.parametrize("cut", [slice(0, -20), slice(1, None)], ids=["truncated", "no gzip"])
def test_a_damaged_file_beside_what_was_made_of_it(call, refused, small_corpus, tmp_path, cut):
    source, dest = tmp_path / "source", tmp_path / "data"
    shutil.copytree(small_corpus, source)
    words = as_wikitext2(source, dest)
    call(*words)
    text = source / "valid.txt"
    (source / "valid.txt.gz").write_bytes(gzip.compress(text.read_bytes())[cut])
    text.unlink()
    assert f"{source} is damaged in its valid split" in refused(*words)


def test_wikitext2_is_not_wikitext103(refused, wikitext2, tmp_path):
    arguments = ["wikitext-103", "--from", wikitext2, "--dest", tmp_path / "data"]
    assert "it is not that of wikitext-103" in refused("data-prep/wikitext.sh", *arguments)


def test_unverified_is_recorded_and_asked_for_again(call, refused, small_corpus, tmp_path, capsys):
    *words, accepted = as_wikitext2(small_corpus, tmp_path / "data")
    assert accepted in refused(*words)
    call(*words, accepted)
    assert "NOT verified" in capsys.readouterr().out
    assert manifest(tmp_path / "data")["verified"] is False
    assert "unverified" in refused(*words)
