"""An encoder from RoBERTa weights of transformers, written as a checkpoint of fairseq's."""

import os
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf
from torch import nn

from pipeline.errors import UserError
from pipeline.export import hf_roberta
from pipeline.export.hf_roberta import EMBEDDING, OF_VOCABULARY, POSITIONS, Weights
from pipeline.files import ROOT, begin, check_begin, fingerprint, partial_of, sha256_of, shown_path
from pipeline.outputs import check_output_folder
from pipeline.training.checkpoint import build_encoder, encoders, read_dictionary
from pipeline.training.recipe import suggestion
from pipeline.training.save_dir import keep_vocabulary
from pipeline.training.train import parsed
from user_dir.checks import dictionaries

COMMAND = "import_hf.sh"
RESULT = "imported.pt"
OTHER_DATA = "give the folder prepared with the tokeniser of the weights"
# What fairseq looks for in a checkpoint from which training starts.
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


def configuration(options: Namespace, size: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """What `fairseq-train` makes of the architecture with the imported size and the user's flags."""
    words = [str(options.data.absolute()), "--user-dir", str(ROOT / "user_dir"), "--task", "masked_lm"]
    words += ["--criterion", "masked_lm", "--arch", options.arch, *size, *flags]
    return OmegaConf.to_container(
        convert_namespace_to_omegaconf(parsed(words)), resolve=True, enum_to_str=True
    )


def in_dictionary_order(weights: Weights, options: Namespace, dictionary: Dictionary) -> tuple[Weights, int]:
    """The weights, the rows of the vocabulary in the order of `dictionary`, and how many entries have none.

    Those begin as `<unk>`. Without a vocabulary beside the weights, the order is taken to be the
    dictionary's, as it is in roberta-base. Raises UserError where the sizes cannot agree.
    """
    known = hf_roberta.read_vocabulary(options.source)
    size = len(weights[EMBEDDING])
    if known is None:
        if size != len(dictionary):
            raise UserError(
                f"{options.source} has {size:,} tokens, the dictionary of {options.data} has "
                f"{len(dictionary):,}; {OTHER_DATA}"
            )
        return weights, 0
    rows = hf_roberta.rows_of(known, dictionary, options.data)
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
    """Copy the weights that `encoder` has with the same shape; the names of those and of the others it has.

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
    """The checkpoint and, beside it, dictionary and tokeniser; each file is whole or not there."""
    keep_vocabulary(prepared, out, failed_start=True)
    partial = partial_of(out / RESULT)
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, out / RESULT)


def import_hf(options: Namespace, flags: Sequence[str]) -> Path:
    """Write the checkpoint and say what it holds; UserError for weights that cannot be imported."""
    if options.arch not in encoders():
        near = suggestion(options.arch, encoders()) or f"; choose one of {', '.join(encoders())}"
        raise UserError(f"there is no encoder {options.arch!r}{near}")
    config = hf_roberta.read_config(options.source)
    dictionary = read_dictionary(options.data)
    check_output_folder(options.out, "DIR")
    decisive = [options.arch, flags, options.seed, options.embeddings_only]
    files = [hf_roberta.weights_file(options.source), options.data / "dict.txt"]
    mark = fingerprint([*decisive, *map(sha256_of, files)])
    content = f"the import of {shown_path(options.source)} as {options.arch}"
    check_begin(options.out, COMMAND, mark, content, "DIR")
    weights, others = hf_roberta.renamed(hf_roberta.read_weights(options.source))
    weights, missing = in_dictionary_order(weights, options, dictionary)
    cfg = configuration(options, hf_roberta.as_settings(config), flags)
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
        print(f"left out, no part of an encoder: {', '.join(others)}")
    if missing:
        print(f"{missing:,} entries of the dictionary are not in the vocabulary and begin as <unk>")
    return options.out / RESULT
