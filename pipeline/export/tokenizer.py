"""tokenizer.json of `tokenizers` from the tokeniser beside a checkpoint: words, pieces or GPT-2's BPE.

Token indices are those of fairseq's dictionary. Text is cut as `pipeline.data.tokenization` cuts it.
"""

import json
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from pipeline.data.tokenization import UNKNOWN_WORD, GPT2Encoder, SentencePieceEncoder

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
SPACE = "\u2581"


def tokenizer_files(folder: Path, dictionary: Dictionary, encoder: bool) -> dict[str, bytes]:
    """The files of the tokeniser in `folder`; those of a word model need its dictionary alone.

    An `encoder` gets `<s>` and `</s>` around each text and between two of them, a language model nothing.
    """
    indices = {symbol: index for index, symbol in enumerate(dictionary.symbols)}
    if all((folder / name).is_file() for name in GPT2Encoder.files):
        parts = _gpt2(folder, indices)
    elif (folder / SentencePieceEncoder.files[0]).is_file():
        parts = _pieces(folder, indices)
    else:
        parts = _words(indices)
    added = [
        {"id": indices[symbol], "content": symbol, "special": True, "normalized": False, "single_word": False,
         "lstrip": symbol == "<mask>", "rstrip": False}
        for symbol in SPECIAL
        if symbol in indices and (symbol != "<unk>" or parts["model"]["unk_token"])
    ]  # fmt: skip
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _around(indices) if encoder else None,
        "decoder": None,
        **parts,
    }
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": parts["model"]["unk_token"]}
    if encoder:
        names |= {"cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": symbol for name, symbol in names.items() if symbol},
    }
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(about, indent=2).encode(),
    }


def _around(indices: dict[str, int]) -> dict[str, Any]:
    """RoBERTa's template, `<s> a </s>` and `<s> a </s> </s> b </s>`."""

    def token(symbol: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": symbol, "type_id": 0}}

    def text(name: str) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": 0}}

    single = [token("<s>"), text("A"), token("</s>")]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, token("</s>"), text("B"), token("</s>")],
        "special_tokens": {
            symbol: {"id": symbol, "ids": [indices[symbol]], "tokens": [symbol]} for symbol in ("<s>", "</s>")
        },
    }


def _words(indices: dict[str, int]) -> dict[str, Any]:
    return {
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": indices, "unk_token": "<unk>"},
    }


def _gpt2(folder: Path, indices: dict[str, int]) -> dict[str, Any]:
    numbers, pairs = (folder / name for name in GPT2Encoder.files)
    written = json.loads(numbers.read_text(encoding="utf-8"))
    vocabulary = {word: indices[str(number)] for word, number in written.items() if str(number) in indices}
    vocabulary |= {symbol: indices[symbol] for symbol in SPECIAL if symbol in indices}
    merges = [line.split() for line in pairs.read_text(encoding="utf-8").split("\n")[1:-1]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [pair for pair in merges if "".join(pair) in vocabulary],
            "unk_token": "<unk>",
        },
    }


def _pieces(folder: Path, indices: dict[str, int]) -> dict[str, Any]:
    """Sentencepiece's BPE: a pair merges in the order of its piece's score, rare characters become bytes.

    Nothing is unknown; `<unk>` in a text is WikiText's own, a piece like others.
    """
    model = (folder / SentencePieceEncoder.files[0]).read_bytes()
    processor = SentencePieceProcessor(model_proto=model)
    pieces = {processor.id_to_piece(number): number for number in range(processor.get_piece_size())}
    ranks = {
        piece: number
        for piece, number in pieces.items()
        if piece != UNKNOWN_WORD and not processor.is_unknown(number) and not processor.is_byte(number)
    }
    merges = []
    for piece, rank in ranks.items():
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(rank, list(pair)) for pair in cuts if pair[0] in ranks and pair[1] in ranks]
    merges.sort(key=lambda merge: merge[0])
    steps = [
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    undo = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {  # a piece of its own, which no pair leads to
            "type": "Split",
            "pattern": {"String": UNKNOWN_WORD},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": undo},
        "model": {
            "type": "BPE",
            "vocab": indices,
            "merges": [pair for _, pair in merges if "".join(pair) in indices],
            "unk_token": None,
            "ignore_merges": True,
            "fuse_unk": False,
            "byte_fallback": True,
        },
    }
