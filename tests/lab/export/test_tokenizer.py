"""Exported tokenizers cut text into the indices that training saw."""

import shutil

import pytest
from fairseq.data import Dictionary
from sentencepiece import SentencePieceTrainer

from lab.data.tokenization import TextEncoder, encode_sentences
from lab.errors import UserError
from lab.export.exported import tokenizer_files
from tests.helpers.prepared import write_files

TEXTS = [
    "The sea was calm .",
    "  two  spaces\tand a tab ",
    "naïve café, 東京 \U0001f30a and \u0416",
    "a word with <unk> inside",
    "x",
]


@pytest.mark.slow
def test_pieces_and_words(transformers_answers, encoder_corpus, corpus, tmp_path):
    pieces = Dictionary.load(str(encoder_corpus / "dict.txt"))
    pieces.add_symbol("<mask>")
    words = Dictionary.load(str(corpus / "dict.txt"))
    write_files(tmp_path / "pieces", tokenizer_files(encoder_corpus, pieces, encoder=True))
    write_files(tmp_path / "words", tokenizer_files(corpus, words, encoder=False))
    text = " ".join(words.symbols[4:9]) + " neverseen"
    found = transformers_answers(tmp_path, {"pieces": {"texts": TEXTS}, "words": {"texts": [text]}})
    encoder = TextEncoder.from_folder(encoder_corpus)
    assert found["pieces"]["indices"] == [encode_sentences(encoder, pieces, [one]).tolist() for one in TEXTS]
    assert found["words"]["indices"] == [[4, 5, 6, 7, 8, words.unk()]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_type": "unigram", "hard_vocab_limit": False}, "is not a BPE model"),
        ({"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"}, "rewrites characters"),
        ({"model_type": "bpe", "normalization_rule_name": "identity"}, "lacks .* pieces of the tokeniser"),
    ],
)
def test_pieces_that_would_be_cut_otherwise_are_refused(options, said, tmp_path):
    text = ["the sea was calm and the sky was grey", "a ship went out to sea in the morning"] * 20
    path = tmp_path / "sentencepiece.bpe.model"
    with path.open("wb") as model:
        SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=model, vocab_size=40, minloglevel=2, **options
        )
    words = Dictionary()
    words.add_symbol("sea")
    with pytest.raises(UserError, match=said):
        tokenizer_files(tmp_path, words, encoder=False)


@pytest.mark.slow
def test_gpt2(transformers_answers, shared_dir, tmp_path):
    source = tmp_path / "bpe"
    shutil.copytree(next(path.parent for path in (shared_dir / "data").rglob("vocab.bpe")), source)
    words = Dictionary.load(str(source / "dict.txt"))
    words.add_symbol("<mask>")
    write_files(tmp_path / "gpt2", tokenizer_files(source, words, encoder=True))
    texts = [one for one in TEXTS if "<unk>" not in one]  # a special token of transformers', not of GPT-2
    found = transformers_answers(tmp_path, {"gpt2": {"texts": texts}})["gpt2"]
    encoder = TextEncoder.from_folder(source)
    assert found["indices"] == [encode_sentences(encoder, words, [one]).tolist() for one in texts]
    assert found["texts"] == [one.strip() for one in texts]
