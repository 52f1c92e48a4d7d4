"""Mistakes on the command lines of data-prep/: one sentence that names the option, and nothing is written."""

import pytest

CASES = [
    ("wikitext.sh wikitext-2 --from missing", "missing (given with --from) does not exist"),
    ("wikitext.sh wikitext-2 --from . --url http://a/b.zip", "--from"),
    ("wikitext.sh wikitext-2 --vocab-size 100", "--vocab-size"),
    ("wikitext.sh wikitext-2 --vocabulary-from . --tokenizer words", "--vocabulary-from"),
    ("wikitext.sh wikitext-2-raw", "wikitext-2-raw"),
    ("roberta.sh text", "--from"),
    ("roberta.sh text --from . --vocab-size 100", "--vocab-size"),
    ("roberta.sh wikitext-2 --tokenizer sentencepiece --gpt2-bpe .", "--gpt2-bpe"),
    ("bundled_corpus.sh --vocab-size many", "--vocab-size"),
    ("glue.sh missing --tokenizer-from .", "is no folder"),
    ("glue.sh . --task cola --tokenizer-from .", "did you mean CoLA?"),
    ("glue.sh . --task QQP --tokenizer-from .", "has no folder QQP"),
    ("images.sh digits --from /", "--from"),
    ("images.sh mnist", "--from"),
    ("images.sh cifar10", "--from"),
    ("images.sh dogs-vs-cats", "name the zip file or its unpacked folder with --from"),
    ("images.sh mnist --from missing", "--from: there is no missing"),
    ("images.sh digits --grey", "--grey: these images are grey already"),
    ("images.sh digits --size 3", "--size"),
    ("images.sh svhn", "svhn"),
    ("lra.sh text --generate", "--from"),
    ("lra.sh listop --generate", "no task listop"),
    ("lra.sh listops", "--from --url --generate"),
    ("lra.sh listops --generate --from x", "--from"),
    ("lra.sh listops --generate --examples 9", "--examples"),
    ("lra.sh listops --generate --examples -5", "--examples"),
    ("lra.sh listops --from x --examples 900", "--examples"),
    ("lra.sh text --from x --valid-fraction 1", "--valid-fraction"),
    ("lra.sh listops --generate --processes 0", "--processes"),
    ("lra.sh listops --generate --seed -1", "--seed"),
    ("lra.sh listops --generate --length 9", "--length"),
    ("lra.sh listops --generate --listops-drop-close-brackets --pipeline state-space", "keeps `]`"),
    ("lra.sh text --from missing", "there is no missing"),
]


@pytest.mark.parametrize(("command", "named"), CASES, ids=[command for command, _ in CASES])
def test_mistakes_are_refused_in_a_sentence(command, named, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script, *words = command.split()
    sentence = refused(f"data-prep/{script}", *words, "--dest", "new")
    assert named in sentence and not sentence.endswith(".")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
