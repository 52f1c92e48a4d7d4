"""GPT-2's files, found or fetched, and encoding in several processes."""

import hashlib
import os
import random
import shutil
import subprocess
import sys

import pytest

from lab.data import tokenization
from lab.data.published import read_corpus
from lab.data.tokenization import GPT2_BPE, GPT2Encoder, TextEncoder, find_gpt2_files
from lab.errors import UserError
from tests.helpers.serving import Server

CONTENT = {"encoder.json": b"{}", "vocab.bpe": b"#version: 0.2\n", "dict.txt": b"13 5\n"}


class Upper:
    """Something that encodes, quickly."""

    def encode(self, text):
        return f"{text.upper()} {len(text)}"


class Dies:
    """Something whose process is killed."""

    def encode(self, text):
        os._exit(9)


@pytest.mark.parametrize("count", [0, 1, 99, 1234])
def test_processes_keep_the_order(monkeypatch, count):
    monkeypatch.setattr(tokenization, "TEXTS_AT_ONCE", 7)
    texts = [f"text {number}" for number in range(count)]
    alone = list(tokenization.encode_all(Upper(), iter(texts), 1))
    assert alone == [f"{text.upper()} {len(text)}" for text in texts]
    assert list(tokenization.encode_all(Upper(), iter(texts), 3)) == alone


def test_killed_process_ends_in_one_sentence():
    with pytest.raises(UserError, match="was killed"):
        list(tokenization.encode_all(Dies(), ["a", "b"], 2))


def test_processes_end_with_their_killed_parent():
    """They hold the pipe of the output open as long as they live."""
    program = """
import os, signal
from lab.data.tokenization import encode_all
class Encoder:
    def encode(self, text):
        return text
texts = ("a" for _ in range(10**9))
encoded = encode_all(Encoder(), texts, 2)
next(encoded)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert result.returncode == -9, result.stderr


def test_gpt2_in_processes(monkeypatch, shared_dir, small_texts):
    monkeypatch.setattr(tokenization, "TEXTS_AT_ONCE", 50)
    encoder = GPT2Encoder(shared_dir / "data" / "gpt2_bpe")
    lines = small_texts["valid"] + ["naïve  Ünïcode 你好 \u2028 ?", ""]
    alone = list(tokenization.encode_all(encoder, lines, 1))
    assert list(tokenization.encode_all(encoder, lines, 2)) == alone
    assert [encoder.decode(tokens) for tokens in alone] == [line.strip() for line in lines]


def test_gpt2_is_that_of_fairseq(shared_dir, small_texts):
    from fairseq.data.encoders.gpt2_bpe_utils import get_encoder

    folder = shared_dir / "data" / "gpt2_bpe"
    encoder, reference = GPT2Encoder(folder), get_encoder(*(str(folder / name) for name in GPT2Encoder.files))
    rng = random.Random(0)
    alphabet = [*map(chr, range(32, 127)), *" \t\u00a0\u3000'", "é", "你", "\U0001f600", "\u200d", "ß"]
    lines = small_texts["valid"] + ["".join(rng.choices(alphabet, k=40)) for _ in range(300)]
    lines += ["<|endoftext|> is a text", "we'll  'S   it's", ""]
    for line in lines:
        tokens = reference.encode(line.strip())
        assert encoder.encode(line) == " ".join(map(str, tokens))
        assert encoder.decode(encoder.encode(line)) == reference.decode(tokens)


def test_gpt2_files_of_two_vocabularies_are_refused(shared_dir, tmp_path):
    for name in GPT2Encoder.files:
        shutil.copyfile(shared_dir / "data" / "gpt2_bpe" / name, tmp_path / name)
    lines = (tmp_path / "vocab.bpe").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "vocab.bpe").write_text("".join([lines[0], lines[2], lines[1], *lines[3:]]), "utf-8")
    with pytest.raises(UserError, match="carries a damaged tokeniser .*do not belong together"):
        TextEncoder.from_folder(tmp_path)


def test_published_files_pass(shared_dir, tmp_path):
    folder = shared_dir / "data" / "gpt2_bpe"
    assert find_gpt2_files(folder, tmp_path) == folder


def test_other_files_are_refused(refused, shared_dir, tiny_pretraining, tmp_path):
    files = tmp_path / "files"
    shutil.copytree(shared_dir / "data" / "gpt2_bpe", files)
    files.chmod(0o700)
    (files / "vocab.bpe").chmod(0o600)
    with (files / "vocab.bpe").open("ab") as output:
        output.write(b"a b\n")
    arguments = ["text", "--from", tiny_pretraining.parent, "--dest", tmp_path / "out" / "data"]
    sentence = refused("data-prep/roberta.sh", *arguments, "--gpt2-bpe", files)
    assert f"{files / 'vocab.bpe'} has the sha256" in sentence
    assert GPT2_BPE.files["vocab.bpe"].sha256 in sentence
    (files / "vocab.bpe").unlink()
    sentence = refused("data-prep/roberta.sh", *arguments, "--gpt2-bpe", files)
    assert "holds no vocab.bpe" in sentence
    assert not (tmp_path / "out").exists()


@pytest.fixture
def server():
    with Server(CONTENT) as serving:
        yield serving


def served(url):
    """GPT-2's entry of sources.json, for the server's files."""
    files = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in CONTENT.items()
    }
    return read_corpus("gpt2-bpe", {**GPT2_BPE.entry, "address": url, "files": files})


def test_download_is_checked_and_kept(server, tmp_path):
    corpus = served(server.url)
    found = find_gpt2_files(None, tmp_path, corpus)
    assert found == tmp_path / "gpt2_bpe"
    assert {path.name: path.read_bytes() for path in found.iterdir()} == CONTENT
    server.files.clear()
    assert find_gpt2_files(None, tmp_path, corpus) == found
    (found / "dict.txt").unlink()
    with pytest.raises(UserError, match=r"answered 404.*--gpt2-bpe.*--tokenizer sentencepiece$"):
        find_gpt2_files(None, tmp_path, corpus)


def test_download_of_something_else_is_refused(server, tmp_path):
    server.files["encoder.json"] = b"{sign in}"
    with pytest.raises(UserError, match=r"encoder.json \(now removed\) has the sha256"):
        find_gpt2_files(None, tmp_path, served(server.url))
    assert list((tmp_path / "gpt2_bpe").iterdir()) == []
