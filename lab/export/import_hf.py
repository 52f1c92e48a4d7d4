"""The command `import`: a checkpoint made of the RoBERTa weights of `transformers`."""

import json
import pickle
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from lab.errors import MALFORMED, UserError, suggestion
from lab.export.exported import WEIGHTS
from lab.files import (
    ROOT,
    begin,
    check_begin,
    check_output_folder,
    fingerprint,
    flush_to_disk,
    read_object,
    replacing,
    sha256_of,
    shown_path,
)
from lab.run.checkpoint import ENCODER, POSITIONS_BEFORE_THE_FIRST, build_encoder, encoders, read_dictionary
from lab.run.folder import keep_vocabulary
from lab.run.plan import parsed
from lab.run.recipe import check_owned
from user_dir.checks import dictionaries


def main(options: Namespace) -> None:
    """Import, and say where it went."""
    options.out = options.out.absolute()
    path = import_hf(options, options.flags)
    print(f"written to {shown_path(path)}")


PICKLED = "pytorch_model.bin"
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
# Sizes in config.json, and their flags of `fairseq-train`.
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
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", POSITIONS_KEY)
TYPES = "embeddings.token_type_embeddings.weight"

COMMAND = "import_hf.sh"
OWNED_FLAGS = ("--arch", "--task", "--criterion", "--user-dir")
RESULT = "imported.pt"
OTHER_DATA = "give the folder prepared with the tokeniser of the weights"
# Entries that fairseq expects in a checkpoint from which training starts.
BEGINNING = {
    "args": None,
    "criterion": None,
    "last_optimizer_state": None,
    "task_state": {},
    "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0, "shuffle": True, "version": 2}},
    "optimizer_history": [
        {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    ],
}

Weights = dict[str, torch.Tensor]


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json; UserError unless it describes a RoBERTa that fairseq can compute."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name the one with config.json and the weights")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} holds no config.json; name the folder with config.json and the weights")
    config = read_object(folder / "config.json")
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
    for key in SIZES:
        if type(config[key]) is not int:
            raise UserError(
                f"{folder / 'config.json'} has {key} {config[key]!r}, not a whole number; get it again"
            )
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
    """The weights under this project's names, and the names of weights without a counterpart here.

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
    """This project's name of a weight; None if there is no counterpart."""
    if match := LAYER.fullmatch(name):
        number, part, kind = match.groups()
        return f"{ENCODER}layers.{number}.{PARTS[part]}.{kind}" if part in PARTS else None
    module, _, kind = name.rpartition(".")
    return f"{MODULES[module]}.{kind}" if module in MODULES else None


def read_vocabulary(folder: Path) -> dict[str, int] | None:
    """Each token's index, of vocab.json or else tokenizer.json; None if neither is there."""
    if (folder / "vocab.json").is_file():
        return read_object(folder / "vocab.json")
    if (folder / "tokenizer.json").is_file():
        whole = read_object(folder / "tokenizer.json")
        try:
            vocabulary = whole.get("model", {}).get("vocab")
            if isinstance(vocabulary, dict):
                return vocabulary | {token["content"]: token["id"] for token in whole.get("added_tokens", [])}
        except MALFORMED:
            raise UserError(f"{folder / 'tokenizer.json'} is not a tokeniser's; get it again") from None
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


def configuration(options: Namespace, size: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """fairseq's configuration of the architecture with the imported size and the user's flags."""
    words = [str(options.data.absolute()), "--user-dir", str(ROOT / "user_dir"), "--task", "masked_lm"]
    words += ["--criterion", "masked_lm", "--arch", options.arch, *size, *flags]
    return OmegaConf.to_container(
        convert_namespace_to_omegaconf(parsed(words)), resolve=True, enum_to_str=True
    )


def in_dictionary_order(weights: Weights, options: Namespace, dictionary: Dictionary) -> tuple[Weights, int]:
    """The weights, the rows of the vocabulary in the order of `dictionary`, and how many entries lack one.

    Those begin as `<unk>`. Without a vocabulary beside the weights, the order is taken to be the
    dictionary's, as it is in roberta-base. Raises UserError where the sizes cannot agree.
    """
    known = read_vocabulary(options.source)
    size = len(weights[EMBEDDING])
    if known is None:
        if size != len(dictionary):
            raise UserError(
                f"{options.source} has {size:,} tokens, the dictionary of {options.data} has "
                f"{len(dictionary):,}; {OTHER_DATA}"
            )
        return weights, 0
    rows = rows_of(known, dictionary, options.data)
    missing = sum(row is None for row in rows)
    if 2 * missing > len(rows) or max(row or 0 for row in rows) >= size:
        raise UserError(
            f"{options.source} has rows for {len(rows) - missing:,} of the {len(rows):,} entries of the "
            f"dictionary of {options.data}; {OTHER_DATA}"
        )
    unknown = known.get("<unk>", dictionary.unk())
    order = torch.tensor([unknown if row is None else row for row in rows])
    return {name: w[order] if name in OF_VOCABULARY else w for name, w in weights.items()}, missing


def take(
    encoder: nn.Module, weights: Weights, only: Iterable[str] | None = None
) -> tuple[list[str], list[str]]:
    """Copy the weights whose names and shapes match `encoder`; returns the names copied and those left.

    `only` limits them. Buffers, such as LLN's running statistics, belong to neither.
    """
    state = encoder.state_dict(keep_vars=True)
    taken = [
        name
        for name, tensor in state.items()
        if name in weights and tensor.shape == weights[name].shape and (only is None or name in only)
    ]
    with torch.no_grad():
        for name in taken:
            state[name].copy_(weights[name])
    tied = {id(state[name]) for name in taken}
    parameters = [name for name, tensor in state.items() if isinstance(tensor, nn.Parameter)]
    return taken, [name for name in parameters if id(state[name]) not in tied]


def summary(names: Iterable[str]) -> str:
    """The names, a layer's once with the number of layers."""
    general = Counter(re.sub(r"\blayers\.\d+\.", "layers.*.", name) for name in names)
    shown = (f"{name} ({count})" if "*" in name else name for name, count in general.items())
    return ", ".join(name.removeprefix("encoder.").removeprefix("sentence_encoder.") for name in shown)


def write(out: Path, state: dict[str, Any], prepared: Path) -> None:
    """The checkpoint and, beside it, dictionary and tokeniser; each file is written whole or not at all."""
    keep_vocabulary(prepared, out, failed_start=True)
    with replacing(out / RESULT) as partial:
        torch.save(state, partial)
        flush_to_disk(partial)


def import_hf(options: Namespace, flags: Sequence[str]) -> Path:
    """Write the checkpoint and list its content; UserError for weights that cannot be imported."""
    if options.arch not in encoders():
        near = suggestion(options.arch, encoders()) or f"; choose one of {', '.join(encoders())}"
        raise UserError(f"there is no encoder {options.arch!r}{near}")
    check_owned("scripts/lab.sh import", flags, OWNED_FLAGS)
    config = read_config(options.source)
    dictionary = read_dictionary(options.data)
    check_output_folder(options.out, "DIR")
    decisive = [options.arch, flags, options.seed, options.embeddings_only]
    files = [weights_file(options.source), options.data / "dict.txt"]
    mark = fingerprint([*decisive, *map(sha256_of, files)])
    content = f"the import of {shown_path(options.source)} as {options.arch}"
    check_begin(options.out, COMMAND, mark, content, "DIR")
    weights, others = renamed(read_weights(options.source))
    weights, missing = in_dictionary_order(weights, options, dictionary)
    cfg = configuration(options, as_settings(config), flags)
    torch.manual_seed(options.seed)
    encoder = build_encoder(options.arch, cfg["model"], cfg["model"]["max_positions"], dictionary)
    taken, random = take(encoder, weights, (EMBEDDING, POSITIONS) if options.embeddings_only else None)
    if EMBEDDING not in taken:
        raise UserError("the encoder's width differs from the weights'; leave --encoder-embed-dim out")
    cfg["model"]["dictionary_sha256"] = dictionaries.fingerprint(dictionary)
    begin(options.out, COMMAND, mark, content, "DIR")
    write(options.out, {**BEGINNING, "cfg": cfg, "model": encoder.state_dict()}, options.data)
    print(f"taken: {summary(taken)}")
    print(f"at random: {summary(random) or 'nothing'}")
    if others:
        print(f"left out, not part of an encoder: {', '.join(others)}")
    if missing:
        print(f"{missing:,} entries of the dictionary are not in the vocabulary and begin as <unk>")
    return options.out / RESULT
