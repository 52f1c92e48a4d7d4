"""An archive from an address: kept, resumed after a break, refused if it is not the original."""

import functools
import http.server
import shutil
import threading

import pytest

from pipeline.errors import UserError


@pytest.fixture
def served(shared_dir, tmp_path):
    """The address of a server of Retrieval's sample, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    shutil.copy(shared_dir / "data" / "lra" / "retrieval_pairs_sample.tar.gz", folder / "pairs.tar.gz")
    (folder / "aclImdb_v1.tar.gz").write_bytes(b"another")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


def test_an_archive_is_downloaded_once(prepare, files, served, tmp_path, capsys):
    url, folder = served
    prepare("retrieval", "--url", f"{url}/pairs.tar.gz?again", "--dest", tmp_path / "made")
    prepare("retrieval", "--from", folder / "pairs.tar.gz", "--dest", tmp_path / "other")
    assert files(tmp_path / "made" / "retrieval") == files(tmp_path / "other" / "retrieval")
    (folder / "pairs.tar.gz").unlink()
    prepare("retrieval", "--url", f"{url}/pairs.tar.gz?again", "--dest", tmp_path / "made")
    assert "downloaded earlier" in capsys.readouterr().out


def test_bad_addresses(prepare, served, tmp_path):
    url, _ = served
    for address, said in (
        (f"{url}/aclImdb_v1.tar.gz", "another aclImdb_v1.tar.gz than the published one"),
        (f"{url}/missing.tar.gz", "answered 404"),
        (f"{url}/", "names no file"),
        ("ftp://nowhere/a.tar", "is not an http or https address"),
    ):
        with pytest.raises(UserError, match=said):
            prepare("text", "--url", address, "--dest", tmp_path / "made")
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
