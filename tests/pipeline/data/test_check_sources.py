"""data-prep/check_sources.sh asks a server on this machine; sources.json itself."""

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.data.check_sources import check, main
from pipeline.data.published import CORPORA, read_corpus
from pipeline.errors import UserError

SIZES = {"/whole": 1234, "/other": 99, "/no-head": 1234}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.server.asked.append(("HEAD", self.path))
        if self.path == "/no-head":
            return self.send_error(405)
        return self.answer()

    def do_GET(self):
        self.server.asked.append(("GET", self.path))
        self.answer()

    def answer(self):
        if self.path not in SIZES:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(SIZES[self.path]))
        self.end_headers()
        return None


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.asked = []
        threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True).start()
        yield serving
        serving.shutdown()


def corpus_entry(address, files, size=1234):
    return {
        "address": address,
        "licence": "none",
        "when_dead": "do without",
        "files": {name: {"size": size, "sha256": None} for name in files},
    }


def corpus(server, *files, size=1234):
    return read_corpus("tiny", corpus_entry(f"http://127.0.0.1:{server.server_port}", files, size))


def test_living_addresses(server, capsys):
    check([corpus(server, "whole", "no-head"), corpus(server, "other", size=None)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ok, 1,234 bytes"] * 2 + ["ok, 99 bytes"]
    assert "do without" not in "".join(lines)
    assert server.asked.count(("GET", "/no-head")) == 1 and len(server.asked) == 4


def test_dead_and_changed_addresses(server, capsys):
    with pytest.raises(UserError, match="2 of 3 addresses"):
        check([corpus(server, "gone", "whole", "other")])
    gone, whole, other = capsys.readouterr().out.splitlines()
    assert gone.startswith("DEAD (404)") and gone.endswith("/gone; do without")
    assert whole.startswith("ok, 1,234 bytes")
    assert other.startswith("CHANGED, 99 bytes, not 1,234")


def nowhere(*files):
    """A corpus on a port at which nobody listens."""
    return read_corpus("far", corpus_entry("http://127.0.0.1:9", files))


def test_no_network(capsys):
    with pytest.raises(UserError, match=r"none of the 2 addresses.*refused.*with a network"):
        check([nowhere("whole", "other")])
    assert capsys.readouterr().out == ""


def test_one_dead_host_is_no_missing_network(server, capsys):
    with pytest.raises(UserError, match="1 of 2 addresses"):
        check([corpus(server, "whole"), nowhere("whole")])
    assert "DEAD (" in capsys.readouterr().out.splitlines()[1]


def test_unknown_corpus(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_sources", "nowhere"])
    with pytest.raises(UserError, match="there is no corpus nowhere; choose from wikitext-2"):
        main()


def test_every_entry_is_complete():
    for corpus in CORPORA.values():
        assert corpus.licence and corpus.when_dead and corpus.files
        for file in corpus.files.values():
            assert re.fullmatch(r"https://[\w.-]+/\S+", file.url)
            assert file.size is None or file.size > 0
            assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)


def test_gpt2s_files_are_those_of_the_reference_data(shared_dir):
    for name, file in CORPORA["gpt2-bpe"].files.items():
        assert (shared_dir / "data" / "gpt2_bpe" / name).stat().st_size == file.size
