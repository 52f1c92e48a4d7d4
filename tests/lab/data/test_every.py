"""Every command of data-prep/: its result is the same each time, is left alone, and is not another's."""

import pytest

from tests.helpers.prepared import contents

SP = "--tokenizer sentencepiece --vocab-size"
COMMANDS = {
    "wikitext": f"wikitext.sh wikitext-2 --from {{small}} --allow-unverified {SP} 1000",
    "roberta": f"roberta.sh text --from {{tiny}} {SP} 340",
    "own": "text.sh --from {tiny} --vocab-size 340",
    "bundled": "bundled_corpus.sh --vocab-size 1000",
    "digits": "images.sh digits",
    "listops": "lra.sh listops --generate --examples 200",
    "pathfinder": "lra.sh pathfinder --generate --examples 40",
    "text": "lra.sh text --from {samples} --partial --length 30",
}
OTHERS = [
    ("wikitext", f"{SP} 1000", f"{SP} 2000", "with vocabulary 1000, not with vocabulary 2000"),
    ("wikitext", f"{SP} 1000", "", "with tokenizer sentencepiece, not with tokenizer words"),
    ("wikitext", "--allow-unverified", "", "--allow-unverified"),
    ("roberta", "340", "4000", "with vocabulary 340, not with vocabulary 4000"),
    ("roberta", f"{SP} 340", "", "with tokenizer sentencepiece, not with tokenizer gpt2"),
    ("roberta", " text", " wikitext-2", "with corpus text, not with corpus wikitext-2"),
    (
        "own",
        "--vocab-size 340",
        "--tokenizer words",
        "with tokenizer sentencepiece, not with tokenizer words",
    ),
    ("own", "{tiny}", "{small}", "prepared from another valid split than"),
    ("bundled", "1000", "1001", "with vocabulary 1000, not with vocabulary 1001"),
    ("digits", "digits", "digits --size 4", "without size, not with size 4"),
    ("listops", "200", "100", "with examples 200, not with examples 100"),
    ("listops", "200", "200 --seed 7", "with seed 42, not with seed 7"),
    (
        "listops",
        "--generate --examples 200",
        "--from {samples} --partial",
        "with --generate, not without --generate",
    ),
    ("text", "--partial", "", "--partial"),
    (
        "text",
        "--partial",
        "--partial --valid-fraction 0.5",
        "with valid fraction 0.1, not with valid fraction 0.5",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where each command puts its data; it is made once."""
    return tmp_path_factory.mktemp("every")


@pytest.fixture
def words(small_blocks, small_corpus, tiny_pretraining, samples):
    """The words of a command line whose blocks are small."""

    def split(text, dest):
        places = {"small": small_corpus, "tiny": tiny_pretraining.parent, "samples": samples}
        script, *rest = [word.format(**places) for word in text.split()]
        return [f"data-prep/{script}", *rest, "--dest", dest]

    return split


@pytest.mark.parametrize("name", COMMANDS)
def test_it_is_made_once_and_the_same_each_time(name, call, words, folder, tmp_path, capsys):
    call(*words(COMMANDS[name], folder / name))
    made = contents(folder / name)
    times = {path: path.stat().st_mtime_ns for path in (folder / name).rglob("*")}
    capsys.readouterr()
    call(*words(COMMANDS[name], folder / name))
    assert "is ready: " in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (folder / name).rglob("*")} == times
    call(*words(COMMANDS[name], tmp_path / "again"))
    assert contents(tmp_path / "again") == made


@pytest.mark.parametrize(("name", "given", "instead", "said"), OTHERS)
def test_data_made_otherwise_are_refused(name, given, instead, said, call, refused, words, folder):
    call(*words(COMMANDS[name], folder / name))
    before = contents(folder / name)
    assert given in COMMANDS[name]
    sentence = refused(*words(COMMANDS[name].replace(given, instead), folder / name))
    assert said in sentence and "--dest" in sentence
    assert contents(folder / name) == before
