"""RoBERTa as transformers saves it: configuration, weights under this project's names, vocabulary."""

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from safetensors import SafetensorError
from safetensors.torch import load_file

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.training.checkpoint import ENCODER, POSITIONS_BEFORE_THE_FIRST

WEIGHTS, PICKLED = "model.safetensors", "pytorch_model.bin"
NORM_EPSILON = 1e-5  # of fairseq's layer norms
ACTIVATIONS = ("gelu", "relu")
EMBEDDING, POSITIONS = f"{ENCODER}embed_tokens.weight", f"{ENCODER}embed_positions.weight"
OUTPUT = "encoder.lm_head."
OF_VOCABULARY = (EMBEDDING, f"{OUTPUT}weight", f"{OUTPUT}bias")
# Beginnings of names there and here.
MODULES = {
    "embeddings.word_embeddings": f"{ENCODER}embed_tokens",
    "embeddings.position_embeddings": f"{ENCODER}embed_positions",
    "embeddings.LayerNorm": f"{ENCODER}layernorm_embedding",
    "lm_head.dense": f"{OUTPUT}dense",
    "lm_head.layer_norm": f"{OUTPUT}layer_norm",
    "lm_head.decoder": "encoder.lm_head",
    "lm_head": "encoder.lm_head",
}
LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)")
PARTS = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
# What config.json says of the size, and the flags of `fairseq-train`.
FLAGS = {
    "hidden_size": "--encoder-embed-dim",
    "intermediate_size": "--encoder-ffn-embed-dim",
    "num_hidden_layers": "--encoder-layers",
    "num_attention_heads": "--encoder-attention-heads",
    "hidden_act": "--activation-fn",
    "hidden_dropout_prob": "--dropout",
    "attention_probs_dropout_prob": "--attention-dropout",
}
POSITIONS_KEY = "max_position_embeddings"
TYPES = "embeddings.token_type_embeddings.weight"

Weights = dict[str, torch.Tensor]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; UserError for another model than RoBERTa, or one that fairseq cannot compute."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the one with config.json and the weights")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json; name the folder with config.json and the weights")
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} holds no configuration; get it again")
    needed = {
        "model_type": ("roberta",),
        "hidden_act": ACTIVATIONS,
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "layer_norm_eps": (NORM_EPSILON,),
        "pad_token_id": (1,),
    }
    defaults = {"position_embedding_type": "absolute", "is_decoder": False, "pad_token_id": 1}
    for key, values in needed.items():
        found = config.get(key, defaults.get(key))
        if found not in values:
            raise UserError(
                f"{folder / 'config.json'} has {key} {found!r}; only {' or '.join(map(repr, values))} can be "
                "imported"
            )
    if absent := [key for key in (*FLAGS, POSITIONS_KEY) if key not in config]:
        raise UserError(f"{folder / 'config.json'} lacks {', '.join(absent)}; get it again")
    return config


def as_settings(config: Mapping[str, Any]) -> list[str]:
    """The size of the model as flags of `fairseq-train`."""
    words = [word for key, flag in FLAGS.items() for word in (flag, str(config[key]))]
    positions = config[POSITIONS_KEY] - POSITIONS_BEFORE_THE_FIRST
    words += ["--max-positions", str(positions), "--tokens-per-sample", str(positions)]
    return words if config.get("tie_word_embeddings", True) else [*words, "--untie-weights-roberta"]


def weights_file(folder: Path) -> Path:
    """The file with the weights; UserError if there is none."""
    for name in (WEIGHTS, PICKLED):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder} holds neither {WEIGHTS} nor {PICKLED}; several files must be joined first")


def read_weights(folder: Path) -> Weights:
    """The weights as they are saved; UserError if there are none, or if they are damaged or hold code."""
    path = weights_file(folder)
    try:
        if path.name == WEIGHTS:
            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} is refused: it is damaged, or holds more than weights; nothing in it was run"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, TypeError, ValueError):
        raise UserError(f"{path} is damaged; copy it again") from None


def renamed(weights: Mapping[str, torch.Tensor]) -> tuple[Weights, list[str]]:
    """The weights under this project's names, and the names of those that no encoder here has.

    The embedding of the only token type is added to every position's. Raises UserError where the
    embeddings are missing.
    """
    found: Weights = {}
    others = []
    for name, tensor in weights.items():
        ours = new_name(name.removeprefix("roberta."))
        if ours:
            found[ours] = tensor.float()
        elif not name.endswith((TYPES, "position_ids")):
            others.append(name)
    if EMBEDDING not in found or POSITIONS not in found:
        raise UserError("the weights lack word or position embeddings; they are not RoBERTa's")
    for name, tensor in weights.items():
        if name.endswith(TYPES):
            found[POSITIONS] = found[POSITIONS] + tensor[0].float()
    found.setdefault(f"{OUTPUT}weight", found[EMBEDDING])
    return found, sorted(others)


def new_name(name: str) -> str | None:
    """This project's name of a weight, None for one that it does not have."""
    if match := LAYER.fullmatch(name):
        number, part, kind = match.groups()
        return f"{ENCODER}layers.{number}.{PARTS[part]}.{kind}" if part in PARTS else None
    module, _, kind = name.rpartition(".")
    return f"{MODULES[module]}.{kind}" if module in MODULES else None


def read_vocabulary(folder: Path) -> dict[str, int] | None:
    """Each token's index, of vocab.json or else tokenizer.json; None if neither is there."""
    if (folder / "vocab.json").is_file():
        return read_json(folder / "vocab.json")
    if (folder / "tokenizer.json").is_file():
        whole = read_json(folder / "tokenizer.json")
        vocabulary = whole.get("model", {}).get("vocab")
        if isinstance(vocabulary, dict):
            return vocabulary | {token["content"]: token["id"] for token in whole.get("added_tokens", [])}
    return None


def rows_of(vocabulary: Mapping[str, int], dictionary: Dictionary, prepared: Path) -> list[int | None]:
    """The row of the embeddings for each entry of fairseq's dictionary, None where they have none.

    GPT-2's pairs are numbers in fairseq's dictionary and strings here; `prepared` holds encoder.json then.
    """
    strings: dict[str, str] = {}
    if (prepared / "encoder.json").is_file():
        numbers = json.loads((prepared / "encoder.json").read_text("utf-8"))
        strings = {str(number): token for token, number in numbers.items()}
    return [vocabulary.get(strings.get(symbol, symbol)) for symbol in dictionary.symbols]
