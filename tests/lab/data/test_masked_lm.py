"""Pre-training data for RoBERTa models: documents, tokens, and fairseq's reading of them."""

import gzip
import json
import shutil
from itertools import groupby, islice

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary, TokenBlockDataset
from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from lab.data.masked_lm import documents_by_titles
from lab.data.tokenization import TextEncoder, tokenizer_fingerprint
from lab.errors import UserError
from tests.helpers.encoders import prepare
from tests.helpers.prepared import decoded, manifest, rows

SPLITS = ("train", "valid", "test")


def test_articles_of_wikitext():
    article = (
        " \n = Ceres = \n \n It is small ( r = 5 = \n = half ; of = \n 10 ) . \n"
        " \n = = Orbit = = \n \n Round . \n"
    )
    lines = f" \n Some words . \n{article}{article} \n".splitlines()
    first, *others = documents_by_titles(lines)
    assert first == ["Some words ."]
    whole = ["= Ceres =", "It is small ( r = 5 =", "= half ; of =", "10 ) .", "= = Orbit = =", "Round ."]
    assert others == [whole, whole]


@pytest.mark.parametrize("lines", [["b", "= C =", "", "d"], ["b", "", "= C =", "d"]])
def test_a_line_without_empty_lines_around_it_is_no_title(lines):
    assert list(documents_by_titles(lines)) == [["b", "= C =", "d"]]


def test_title_at_the_very_beginning_and_end():
    assert list(documents_by_titles(["= A =", "", "b", "", "= C ="])) == [["= A =", "b"], ["= C ="]]
    assert list(documents_by_titles(["", ""])) == []


@pytest.mark.parametrize(
    ("corpus", "split", "articles"),
    [("wikitext-2", "train", 600), ("wikitext-2", "valid", 60), ("wikitext-2", "test", 60)]
    + [("wikitext-103", "valid", 60), ("wikitext-103", "test", 60)],
)
def test_number_of_articles_is_the_published_one(shared_dir, corpus, split, articles):
    with gzip.open(shared_dir / "data" / corpus / f"wiki.{split}.tokens.gz", "rt", encoding="utf-8") as lines:
        text = lines.readlines()
    cut = list(documents_by_titles(text))
    assert len(cut) == articles
    assert [line for document in cut for line in document] == [line.strip() for line in text if line.strip()]


def test_own_text_has_one_empty_row_between_documents(tiny_pretraining):
    source = (tiny_pretraining.parent / "train.txt").read_text().split("\n")
    kept = [line for line in source if line.strip()]
    assert decoded(tiny_pretraining, "train") == [*kept[:-2], "", kept[-2], "", kept[-1]]
    facts = manifest(tiny_pretraining)
    assert facts["corpus"] == "text"
    assert facts["verified"] is None
    assert [facts["splits"][split]["documents"] for split in SPLITS] == [3, 2, 2]
    assert facts["splits"]["valid"]["words"] == 4 + 4 + 3 + 4


def test_samples_of_fairseq_stay_within_documents(tiny_pretraining):
    dictionary = Dictionary.load(str(tiny_pretraining / "dict.txt"))
    dataset = rows(tiny_pretraining, "train")
    blocks = TokenBlockDataset(
        dataset, dataset.sizes, 60, dictionary.pad(), dictionary.eos(), break_mode="complete_doc"
    )
    expected = [
        np.concatenate(list(group)).tolist()
        for empty, group in groupby((row.numpy() for row in dataset), key=lambda row: len(row) == 1)
        if not empty
    ]
    assert len(expected) == 3
    samples = [block.tolist() for block in blocks]
    assert len(samples) > len(expected)
    for document in expected:
        taken = []
        while taken != document:
            taken += samples.pop(0)
            assert taken == document[: len(taken)]
    assert samples == []


def test_masked_lm_adds_the_mask_alone(tiny_pretraining):
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(tiny_pretraining)))
    assert len(task.source_dictionary) == manifest(tiny_pretraining)["vocabulary"] + 1 == 341
    assert task.mask_idx == 340


@pytest.fixture(scope="module")
def gpt2_files(shared_dir):
    return shared_dir / "data" / "gpt2_bpe"


@pytest.fixture(scope="module")
def with_gpt2(small_corpus, gpt2_files, tmp_path_factory):
    """The small corpus with RoBERTa's vocabulary."""
    dest = tmp_path_factory.mktemp("gpt2") / "data"
    words = ("wikitext-2", "--from", small_corpus, "--dest", dest, "--gpt2-bpe", gpt2_files)
    prepare("roberta", *words, "--allow-unverified")
    return dest


@pytest.mark.parametrize("prepared", ["tiny_pretraining", "with_gpt2"])
def test_whole_words_are_masked(prepared, request):
    folder = request.getfixturevalue(prepared)
    config = MaskedLMConfig(data=str(folder), tokens_per_sample=64, seed=1, mask_whole_words=True)
    config.sample_break_mode = "none"
    task = MaskedLMTask.setup_task(config)
    task.load_dataset("train")
    pieces = {symbol: symbol for symbol in task.source_dictionary.symbols}
    if prepared == "with_gpt2":
        encoder = json.loads((folder / "encoder.json").read_text())
        pieces |= {str(number): piece for piece, number in encoder.items()}
    continued = 0
    for sample in islice(task.dataset("train"), 100):
        source, target = sample["net_input.src_tokens"], sample["target"]
        masked = target != task.source_dictionary.pad()
        tokens = target.where(masked, source).tolist()
        for place, token in enumerate(tokens):
            piece = pieces[task.source_dictionary[token]]
            if token >= task.source_dictionary.nspecial and not piece.startswith(("\u2581", "\u0120")):
                within = tokens[place - 1] >= task.source_dictionary.nspecial
                assert not within or masked[place] == masked[place - 1]
                continued += within
    assert continued


def test_whole_words_need_the_tokeniser(tmp_path):
    (tmp_path / "dict.txt").write_text("word 3\n")
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(tmp_path), mask_whole_words=True))
    with pytest.raises(UserError, match="--mask-whole-words needs the tokeniser of the data"):
        _ = task.args


def test_gpt2_vocabulary_is_robertas(with_gpt2, gpt2_files):
    facts = manifest(with_gpt2)
    assert (facts["tokenizer"], facts["vocabulary"]) == ("gpt2", 50_264)
    assert facts["verified"] is False
    for name in ("encoder.json", "vocab.bpe", "dict.txt"):
        assert (with_gpt2 / name).read_bytes() == (gpt2_files / name).read_bytes()
    task = MaskedLMTask.setup_task(MaskedLMConfig(data=str(with_gpt2)))
    assert len(task.source_dictionary) == 50_265


def test_gpt2_rows_decode_to_the_text_and_are_fairseqs(with_gpt2, small_texts, gpt2_files):
    files = {"gpt2_encoder_json": "encoder.json", "gpt2_vocab_bpe": "vocab.bpe"}
    fairseqs = GPT2BPE(GPT2BPEConfig(**{key: str(gpt2_files / name) for key, name in files.items()}))
    dictionary = Dictionary.load(str(with_gpt2 / "dict.txt"))
    for split, lines in small_texts.items():
        kept = [line.strip() for line in lines if line.strip()]
        found = decoded(with_gpt2, split)
        assert [line for line in found if line] == kept
        empty = [number for number, line in enumerate(found) if not line]
        assert all(found[number + 1].startswith("= ") for number in empty)
        facts = manifest(with_gpt2)["splits"][split]
        assert len(empty) == facts["documents"] - 1
        dataset = rows(with_gpt2, split)
        assert facts["tokens"] == dataset.sizes.sum()
        first = dictionary.encode_line(fairseqs.encode(kept[0]), add_if_not_exist=False)
        assert dataset[0].tolist() == first.tolist()


def test_sentencepiece_on_wikitext(call, small_corpus, small_texts, small_prepared, tmp_path):
    """The pieces are those that data-prep/wikitext.sh learns: empty lines make no difference."""
    dest = tmp_path / "data"
    arguments = ["wikitext-2", "--from", small_corpus, "--dest", dest, "--allow-unverified"]
    call("data-prep/roberta.sh", *arguments, "--tokenizer", "sentencepiece", "--vocab-size", 1000)
    assert [line for line in decoded(dest, "test") if line] == [
        line.strip() for line in small_texts["test"] if line.strip()
    ]
    model = "sentencepiece.bpe.model"
    pieces, others = (
        sentencepiece.SentencePieceProcessor(model_file=str(folder / model))
        for folder in (dest, small_prepared)
    )
    assert [pieces.id_to_piece(i) for i in range(len(pieces))] == [
        others.id_to_piece(i) for i in range(len(others))
    ]
    assert tokenizer_fingerprint(dest) == tokenizer_fingerprint(small_prepared)


def test_text_of_another_folder_is_refused(tiny_pretraining, tmp_path):
    """The text has the same length, so that only its checksum tells."""
    source = tiny_pretraining.parent
    facts = manifest(tiny_pretraining)["source"]
    assert facts["path"] == str(source)
    assert facts["bytes"] == {split: (source / f"{split}.txt").stat().st_size for split in SPLITS}
    same, other, gone = tmp_path / "same", tmp_path / "other", tmp_path / "gone"
    for folder in (same, other):
        folder.mkdir()
        for split in SPLITS:
            shutil.copy(source / f"{split}.txt", folder)
    (other / "train.txt").write_text((source / "train.txt").read_text().replace("cat", "cow"))
    options = ("--dest", tiny_pretraining, "--tokenizer", "sentencepiece", "--vocab-size", 340)
    prepare("roberta", "text", "--from", same, *options)
    with pytest.raises(UserError, match=r"another train split than .*other has: from .*bytes, sha256"):
        prepare("roberta", "text", "--from", other, *options)
    with pytest.raises(UserError, match="does not exist"):
        prepare("roberta", "text", "--from", gone, *options)


def test_folder_of_a_language_model_is_refused(refused, small_prepared):
    arguments = ["wikitext-2", "--dest", small_prepared, "--tokenizer", "sentencepiece"]
    arguments += ["--vocab-size", 1000, "--allow-unverified"]
    assert "without marking its documents" in refused("data-prep/roberta.sh", *arguments)


def test_language_models_cannot_take_gpt2s_vocabulary(refused, small_corpus, with_gpt2, tmp_path):
    arguments = ["wikitext-2", "--from", small_corpus, "--dest", tmp_path / "data"]
    sentence = refused("data-prep/wikitext.sh", *arguments, "--vocabulary-from", with_gpt2)
    assert "has the tokens of gpt2" in sentence


def test_raw_wikitext_is_checked(refused, tmp_path):
    (tmp_path / "wiki.valid.raw").write_text(" \n = A title = \n \n Words . \n")
    arguments = ["wikitext-103-raw", "--from", tmp_path, "--dest", tmp_path / "out" / "data"]
    sentence = refused("data-prep/roberta.sh", *arguments, "--tokenizer", "sentencepiece")
    assert "sha1" in sentence
    assert "it is not that of wikitext-103-raw" in sentence
    assert not (tmp_path / "out").exists()


def test_encoder_of_a_folder_without_one(tmp_path, tiny_pretraining):
    with pytest.raises(UserError, match="no sub-word tokeniser"):
        TextEncoder.from_folder(tmp_path)
    shutil.copy(tiny_pretraining / "dict.txt", tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"nothing")
    with pytest.raises(UserError, match="damaged"):
        TextEncoder.from_folder(tmp_path)
    assert tokenizer_fingerprint(tmp_path) != tokenizer_fingerprint(tiny_pretraining)
