"""An archive from an address: kept, resumed after a break, refused if it is not the original."""

import pytest

from tests.helpers.prepared import contents
from tests.helpers.serving import Server


@pytest.fixture
def sample(shared_dir):
    return shared_dir / "data" / "lra" / "retrieval_pairs_sample.tar.gz"


def test_an_archive_is_downloaded_once(prepare, sample, tmp_path, capsys):
    with Server({"pairs.tar.gz": sample.read_bytes()}) as server:
        words = ("retrieval", "--url", f"{server.url}/pairs.tar.gz?again", "--dest", tmp_path / "made")
        prepare(*words)
        server.files.clear()
        prepare(*words)
    prepare("retrieval", "--from", next(tmp_path.rglob("pairs.tar.gz")), "--dest", tmp_path / "other")
    assert contents(tmp_path / "made" / "retrieval") == contents(tmp_path / "other" / "retrieval")
    assert "downloaded earlier" in capsys.readouterr().out


def test_bad_addresses(refused, tmp_path):
    with Server({"aclImdb_v1.tar.gz": b"another"}) as server:
        for address, said in (
            (f"{server.url}/aclImdb_v1.tar.gz", "another aclImdb_v1.tar.gz than the published one"),
            (f"{server.url}/missing.tar.gz", "answered 404"),
            (f"{server.url}/", "names no file"),
            ("ftp://nowhere/a.tar", "is not an http or https address"),
        ):
            words = ("text", "--url", address, "--dest", tmp_path / "made")
            assert said in refused("data-prep/lra.sh", *words)
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
