"""Downloads from a server on this machine that behaves as badly as real ones do."""

import zipfile

import pytest

from lab.data import prepared, published
from lab.data.published import address_mark, partial_of
from lab.errors import UserError
from tests.helpers.serving import Server

CONTENT = bytes(range(256)) * 20_000


FILE = "wikitext-2-v1.zip"


def serving(content=CONTENT, **options):
    return Server({FILE: content}, **options)


def address(server):
    return f"{server.url}/{FILE}"


def download(url, path):
    published.download(url, path, "do without")


def test_whole_file(tmp_path):
    with serving() as server:
        download(address(server), tmp_path / "new folder" / "file")
    assert (tmp_path / "new folder" / "file").read_bytes() == CONTENT
    assert server.ranges == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_resumes(tmp_path, ranges):
    with serving(cut=3_000_000, resumes=ranges) as server:
        with pytest.raises(UserError, match=r"3,000,000 of 5,120,000.*again to resume"):
            download(address(server), tmp_path / "file")
        assert [path.name for path in tmp_path.iterdir()] == [f".{address_mark(address(server))}.file.part"]
        download(address(server), tmp_path / "file")
        assert server.ranges == [None, "bytes=3000000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_other_run_can_write_a_part_until_it_has_its_name(tmp_path, monkeypatch):
    refused = []

    def replace(partial, path):
        with partial.open("ab") as output, pytest.raises(UserError, match="another run is downloading"):
            published._claim(output, partial)
        refused.append(partial)
        partial.rename(path)

    monkeypatch.setattr(published.os, "replace", replace)
    with serving() as server:
        download(address(server), tmp_path / "file")
    assert len(refused) == 1 and (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [b"", b"of another file"])
def test_part_that_is_complete_or_too_long(tmp_path, extra):
    (tmp_path / "file.part").write_bytes(b"somebody else's")
    with serving() as server:
        partial_of(address(server), tmp_path / "file").write_bytes(CONTENT + extra)
        download(address(server), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.ranges) == (2 if extra else 1)
    assert (tmp_path / "file.part").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("url", ["ftp://host/file", "/etc/passwd", "http://127.0.0.1:1/ a", "x"])
def test_addresses_that_are_none(tmp_path, url):
    with pytest.raises(UserError):
        download(url, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_refusing_and_unreachable_hosts(refused, tmp_path):
    arguments = ["wikitext-2", "--dest", tmp_path / "data"]
    with serving(status=403) as server:
        sentence = refused("data-prep/wikitext.sh", *arguments, "--url", address(server))
        assert "answered 403" in sentence
        assert "--from" in sentence
    sentence = refused("data-prep/wikitext.sh", *arguments, "--url", address(server))
    assert "no download from" in sentence
    assert list(tmp_path.iterdir()) == []


def test_empty_answer(tmp_path):
    with serving(b"") as server, pytest.raises(UserError, match="is empty"):
        download(address(server), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_something_else_than_a_zip_is_removed(refused, tmp_path):
    with serving(b"<html>sign in</html>") as server:
        arguments = ["wikitext-2", "--dest", tmp_path / "data", "--url", address(server)]
        assert "is not a zip file" in refused("data-prep/wikitext.sh", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_disk_full_while_downloading(full_disk, refused, tmp_path):
    dest = tmp_path / "data"
    with serving() as server, full_disk(2_000_000):
        sentence = refused("data-prep/wikitext.sh", "wikitext-2", "--dest", dest, "--url", address(server))
    assert f"no space left on the disk of {dest}" in sentence
    (partial,) = tmp_path.iterdir()
    assert partial.name.endswith(".zip.part")
    assert partial.read_bytes() == CONTENT[: partial.stat().st_size]


def test_interrupted_download_then_preparation(call, refused, small_corpus, tmp_path, monkeypatch):
    """The address comes from the environment; the second run asks for the rest only."""
    packed = tmp_path / "source.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in prepared.SPLITS:
            archive.write(small_corpus / f"{split}.txt", f"wikitext-2/wiki.{split}.tokens")
    dest = tmp_path / "with a space" / "data"
    arguments = ["wikitext-2", "--dest", dest, "--allow-unverified"]
    with serving(packed.read_bytes(), cut=100_000) as server:
        monkeypatch.setenv(published.URL_VARIABLE, address(server))
        assert "100,000 of" in refused("data-prep/wikitext.sh", *arguments)
        call("data-prep/wikitext.sh", *arguments)
        assert server.ranges == [None, "bytes=100000-"]
    names = {path.name.split("-v1-")[0] for path in dest.parent.iterdir()}
    assert names == {"data", "wikitext-2"}
