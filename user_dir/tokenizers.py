"""The tokeniser that lies beside a prepared dictionary, and beside the checkpoints of a training on it."""

from pathlib import Path

SENTENCEPIECE = "sentencepiece.bpe.model"
GPT2 = ("encoder.json", "vocab.bpe")


def tokenizer_in(folder: Path) -> dict[str, str]:
    """fairseq's settings for the tokeniser whose files are in `folder`; empty without them."""
    pieces, encoder, pairs = (folder / name for name in (SENTENCEPIECE, *GPT2))
    if encoder.is_file() and pairs.is_file():
        return {"bpe": "gpt2", "gpt2_encoder_json": str(encoder), "gpt2_vocab_bpe": str(pairs)}
    return {"bpe": "sentencepiece", "sentencepiece_model": str(pieces)} if pieces.is_file() else {}
