"""Which files are taken for WikiText, and which are not."""

import gzip
import json
import shutil
import zipfile

import pytest

from pipeline.data import wikitext


@pytest.mark.parametrize(
    ("corpus", "split"),
    [(corpus, split) for corpus in wikitext.CORPORA for split in ("train", "valid", "test")],
)
def test_published_files_pass(shared_dir, tmp_path, corpus, split):
    source = shared_dir / "data" / corpus
    if not (source / f"wiki.{split}.tokens.gz").exists():
        pytest.skip(f"{corpus}'s {split} split is not among the reference data")
    text = wikitext.read_split(source, corpus, split, tmp_path / "text")
    assert text.words == wikitext.CORPORA[corpus].entry["splits"][split]["words"]
    assert wikitext.compare(corpus, split, text) == ""


def test_table_is_that_of_the_reference_data(shared_dir):
    readme = (shared_dir / "data" / "README.md").read_text()
    for corpus, found in wikitext.CORPORA.items():
        for split, published in found.entry["splits"].items():
            if "sha256" in published:
                name = f"{corpus}/wiki.{split}.tokens"
                assert f"`{name}`: `{published['sha256']}`" in readme
                assert f"{published['words']:,} tokens" in readme.split(f"{name}.gz`")[1]


def test_one_changed_letter_is_noticed(wikitext2, tmp_path):
    content = gzip.decompress((wikitext2 / "wiki.valid.tokens.gz").read_bytes())
    (tmp_path / "valid.txt").write_bytes(content.replace(b"Homarus", b"Homerus", 1))
    text = wikitext.read_split(tmp_path, "wikitext-2", "valid", tmp_path / "text")
    assert text.words == 217_646
    assert "sha256" in wikitext.compare("wikitext-2", "valid", text)


def test_wikitext103_train_is_checked_by_count_and_sha1():
    published = wikitext.CORPORA["wikitext-103"].entry["splits"]["train"]
    right = wikitext.Text(103_227_021, 0, "", published["sha1"])
    assert wikitext.compare("wikitext-103", "train", right) == ""
    assert "103,227,021" in wikitext.compare("wikitext-103", "train", wikitext.Text(5, 0, "", ""))
    other = wikitext.Text(103_227_021, 0, "", "0" * 40)
    assert "sha1" in wikitext.compare("wikitext-103", "train", other)


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
    text = wikitext.read_split(source, "wikitext-2", "test", tmp_path / "text")
    assert text.words == 6
    assert (tmp_path / "text").read_bytes() == b"\n= A title =\n"


def test_truncated_split_is_refused_and_leaves_nothing(run, refused, wikitext2, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "out" / "data"
    source.mkdir()
    for split in ("train", "valid"):
        shutil.copy(wikitext2 / f"wiki.{split}.tokens.gz", source)
    content = gzip.decompress((wikitext2 / "wiki.test.tokens.gz").read_bytes())
    (source / "wiki.test.tokens").write_bytes(content[: len(content) // 2])
    sentence = refused(run("wikitext", "wikitext-2", "--from", source, "--dest", dest))
    assert "test split has 123,142" in sentence
    assert "245,569" in sentence
    assert "--allow-unverified" in sentence
    assert not dest.parent.exists()


def test_truncated_gzip_is_refused(run, refused, wikitext2, tmp_path):
    content = (wikitext2 / "wiki.valid.tokens.gz").read_bytes()
    (tmp_path / "wiki.valid.tokens.gz").write_bytes(content[:-1000])
    dest = tmp_path / "data"
    sentence = refused(run("wikitext", "wikitext-2", "--from", tmp_path, "--dest", dest))
    assert "damaged in its valid split" in sentence


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"caf\xe9\n", "line 1 of the valid split is not UTF-8"), (b" \n\n", "is empty")],
)
def test_text_that_is_none(run, refused, tmp_path, content, expected):
    (tmp_path / "valid.txt").write_bytes(content)
    dest = tmp_path / "data"
    sentence = refused(run("wikitext", "wikitext-2", "--from", tmp_path, "--dest", dest))
    assert expected in sentence


def test_missing_folder_and_missing_split(run, refused, wikitext2, tmp_path):
    dest = tmp_path / "data"
    missing = tmp_path / "missing"
    sentence = refused(run("wikitext", "wikitext-2", "--from", missing, "--dest", dest))
    assert f"{missing} (given with --from) does not exist" in sentence
    (tmp_path / "empty").mkdir()
    arguments = ["wikitext-2", "--from", tmp_path / "empty", "--dest", dest]
    sentence = refused(run("wikitext", *arguments))
    assert "holds no valid split of wikitext-2" in sentence
    assert "wiki.valid.tokens" in sentence
    assert not dest.exists()


def test_wikitext2_is_not_wikitext103(run, refused, wikitext2, tmp_path):
    arguments = ["wikitext-103", "--from", wikitext2, "--dest", tmp_path / "data"]
    assert "it is not that of wikitext-103" in refused(run("wikitext", *arguments))


def test_unverified_is_recorded_and_asked_for_again(run, refused, small_corpus, tmp_path):
    dest = tmp_path / "data"
    arguments = ["wikitext-2", "--from", small_corpus, "--dest", dest]
    assert "--allow-unverified" in refused(run("wikitext", *arguments))
    result = run("wikitext", *arguments, "--allow-unverified")
    assert result.returncode == 0, result.stderr
    assert "NOT verified" in result.stdout
    assert json.loads((dest / "preparation.json").read_text())["verified"] is False
    assert "unverified" in refused(run("wikitext", *arguments))
