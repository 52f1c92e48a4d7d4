"""A text of one's own for language models."""

import pytest

from tests.helpers.prepared import decoded, manifest, write_splits


def test_rows_are_the_lines(call, tmp_path, capsys):
    lines = ["A line ,", "", "one with tabs ,", "caf\u00e9 \u4e2d , a character of valid only"]
    text = "\ufeffA  line ,\r\n\none\twith tabs , \n"
    source = write_splits(tmp_path / "texts", train=text * 9, valid=f"{text}{lines[3]}\n", test=text * 9)
    words = ["data-prep/text.sh", "--from", source, "--dest", tmp_path / "data", "--vocab-size", 285]
    call(*words)
    assert "note: train and test hold the same text" in capsys.readouterr().out
    assert decoded(tmp_path / "data", "valid") == lines
    facts = manifest(tmp_path / "data")
    assert (facts["corpus"], facts["verified"], facts["vocabulary"]) == ("text", None, 285)
    assert facts["splits"]["valid"]["words"] == 4 + 1 + 5 + 9
    assert facts["source"]["path"] == str(source)


@pytest.mark.parametrize("symbol", ["<s>", "<pad>", "</s>"])
def test_words_that_are_fairseqs_own_symbols_are_refused(symbol, refused, tmp_path):
    text = "a cat <unk> sat\n"
    source = write_splits(tmp_path / "texts", train=text, valid=f"{text}a {symbol} b\n", test=text * 2)
    words = ["data-prep/text.sh", "--from", source, "--dest", tmp_path / "data", "--tokenizer", "words"]
    assert refused(*words) == (
        f"error: line 2 of the valid split has the word {symbol}, a symbol of fairseq's own; take it out of "
        "the text, or give --tokenizer sentencepiece"
    )
    assert not (tmp_path / "data").exists()
