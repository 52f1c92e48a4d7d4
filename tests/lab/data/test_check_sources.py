"""data-prep/check_sources.sh asks a server on this machine; sources.json itself."""

import re

import pytest

from lab.data.published import CORPORA, check, read_corpus
from lab.errors import UserError
from tests.helpers.serving import Server

FILES = {"whole": bytes(1234), "other": bytes(99), "no-head": bytes(1234)}


@pytest.fixture
def server():
    with Server(FILES, no_head=["no-head"]) as serving:
        yield serving


def corpus_entry(address, files, size=1234):
    return {
        "address": address,
        "licence": "none",
        "when_dead": "do without",
        "files": {name: {"size": size, "sha256": None} for name in files},
    }


def corpus(server, *files, size=1234):
    return read_corpus("tiny", corpus_entry(server.url, files, size))


def test_living_addresses(server, capsys):
    check([corpus(server, "whole", "no-head"), corpus(server, "other", size=None)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["ok, 1,234 bytes"] * 2 + ["ok, 99 bytes"]
    assert "do without" not in "".join(lines)
    assert server.asked.count(("GET", "no-head")) == 1 and len(server.asked) == 4


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


def test_unknown_corpus(refused):
    sentence = refused("data-prep/check_sources.sh", "nowhere")
    assert "there is no corpus nowhere; choose from wikitext-2" in sentence


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
