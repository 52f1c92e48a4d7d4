"""Downloads from a server on this machine that behaves as badly as real ones do."""

import resource
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.data import preparation, wikitext
from pipeline.data.downloads import download
from pipeline.errors import UserError

CONTENT = bytes(range(256)) * 20_000


class Server(ThreadingHTTPServer):
    """Serves `content`; `cut` bytes at most in the first answer, `ranges` says if it resumes."""

    def __init__(self, content=CONTENT, cut=None, ranges=True, status=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cut, self.ranges, self.status = content, cut, ranges, status
        self.requests = []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/wikitext-2-v1.zip"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.requests.append(wanted)
        if server.status:
            return self.send_error(server.status)
        start = int(wanted[6:-1]) if wanted and server.ranges else 0
        size = len(server.content)
        if wanted and start >= size:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{size}")
            self.end_headers()
            return None
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        end, server.cut = server.cut or size, None
        self.wfile.write(server.content[start:end])
        return None


def test_whole_file(tmp_path):
    with Server() as server:
        download(server.url, tmp_path / "new folder" / "file")
    assert (tmp_path / "new folder" / "file").read_bytes() == CONTENT
    assert server.requests == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_off_download_goes_on(tmp_path, ranges):
    with Server(cut=3_000_000, ranges=ranges) as server:
        with pytest.raises(UserError, match=r"3,000,000 of 5,120,000.*again to resume"):
            download(server.url, tmp_path / "file")
        assert [path.name for path in tmp_path.iterdir()] == ["file.part"]
        download(server.url, tmp_path / "file")
        assert server.requests == [None, "bytes=3000000-"]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("extra", [b"", b"of another file"])
def test_part_that_is_complete_or_too_long(tmp_path, extra):
    (tmp_path / "file.part").write_bytes(CONTENT + extra)
    with Server() as server:
        download(server.url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.requests) == (2 if extra else 1)


@pytest.mark.parametrize("url", ["ftp://host/file", "/etc/passwd", "http://127.0.0.1:1/ a", "x"])
def test_addresses_that_are_none(tmp_path, url):
    with pytest.raises(UserError):
        download(url, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_refusing_and_unreachable_hosts(run, refused, tmp_path):
    arguments = ["wikitext-2", "--dest", tmp_path / "data"]
    with Server(status=403) as server:
        sentence = refused(run("wikitext", *arguments, "--url", server.url))
        assert "answered 403" in sentence
        assert "--from" in sentence
    sentence = refused(run("wikitext", *arguments, "--url", server.url))
    assert "no download from" in sentence
    assert list(tmp_path.iterdir()) == []


def test_empty_answer(tmp_path):
    with Server(content=b"") as server, pytest.raises(UserError, match="is empty"):
        download(server.url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_something_else_than_a_zip_is_removed(run, refused, tmp_path):
    with Server(content=b"<html>sign in</html>") as server:
        arguments = ["wikitext-2", "--dest", tmp_path / "data", "--url", server.url]
        assert "is not a zip file" in refused(run("wikitext", *arguments))
    assert list(tmp_path.iterdir()) == []


def test_disk_full_while_downloading(run, refused, tmp_path):
    dest = tmp_path / "data"
    with Server() as server:
        result = run(
            *("wikitext", "wikitext-2", "--dest", dest, "--url", server.url),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000)),
        )
    assert f"no space left on the disk of {dest}" in refused(result)
    (partial,) = tmp_path.iterdir()
    assert partial.name.endswith(".zip.part")
    assert partial.read_bytes() == CONTENT[: partial.stat().st_size]


def test_interrupted_download_then_preparation(run, refused, small_corpus, tmp_path, monkeypatch):
    """The address comes from the environment; the second run asks for the rest only."""
    packed = tmp_path / "source.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for split in preparation.SPLITS:
            archive.write(small_corpus / f"{split}.txt", f"wikitext-2/wiki.{split}.tokens")
    dest = tmp_path / "with a space" / "data"
    arguments = ["wikitext-2", "--dest", dest, "--allow-unverified"]
    with Server(content=packed.read_bytes(), cut=100_000) as server:
        monkeypatch.setenv(wikitext.URL_VARIABLE, server.url)
        assert "100,000 of" in refused(run("wikitext", *arguments))
        result = run("wikitext", *arguments)
        assert result.returncode == 0, result.stderr
        assert server.requests == [None, "bytes=100000-"]
    names = {path.name.split("-v1-")[0] for path in dest.parent.iterdir()}
    assert names == {"data", "wikitext-2"}
