"""The models that are benchmarked, as fairseq builds them, on random data: sizes, attentions, flags, batches.

Here and in the benchmarks, the functions that build models import fairseq and the plugin: that takes three
seconds, which only the process that measures a case needs to spend.
"""

import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lab.data.lra.tasks import TASKS
from lab.methods import ATTENTIONS, VANILLA, Method
from lab.publish.plots import tint
from lab.run.process import import_quickly
from lab.run.recipe import as_flag

SPECIAL_TOKENS = 4  # <s>, <pad>, </s>, <unk> lead every fairseq dictionary


@dataclass(frozen=True)
class Size:
    """Size of a benchmarked model. The vanilla body has the usual inner width, 4 x `width`."""

    layers: int
    width: int
    heads: int
    vocabulary: int

    def __str__(self) -> str:
        return f"{self.layers} layers, width {self.width}, {self.heads} heads, vocabulary {self.vocabulary:,}"

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


SMALL = Size(layers=2, width=128, heads=4, vocabulary=4000)
TINY = Size(layers=2, width=16, heads=2, vocabulary=100)


@dataclass(frozen=True)
class SequenceMethod(Method):
    """An attention in every layer; `plan` is its word in layer plans, `settings` its additions to a model."""

    plan: str = ""
    settings: Mapping[str, int] = field(default_factory=dict)


def _reformer(rounds: int, share: float) -> SequenceMethod:
    label, color = f"Reformer, {rounds} round{'s'[: rounds > 1]}", tint(ATTENTIONS["reformer"].color, share)
    return SequenceMethod(label, color, plan="reformer", settings={"reformer_rounds": rounds})


SEQUENCE_METHODS = {
    **{
        name: SequenceMethod(ATTENTIONS[name].label, ATTENTIONS[name].color, plan=name)
        for name in ("softmax", "elu", "lln_diag")
    },
    **{f"reformer-{n}": _reformer(n, share) for n, share in ((1, 0.5), (4, 0.25), (8, 0))},
}
"""The methods compared in the costs of attention, images and speech, by the name in commands."""

LRA_TITLES = {
    "text": "Text",
    "listops": "ListOps",
    "retrieval": "Retrieval",
    "pathfinder": "Pathfinder",
    "image": "Image",
}
"""The tasks of Long Range Arena that the papers average, in the order of their tables."""
GREY_VALUES = 256


def model_config(architecture: str, **settings: Any) -> Any:
    """fairseq's configuration of an architecture: its defaults, with `settings` in their place."""
    import_quickly("user_dir")
    from fairseq.models import MODEL_DATACLASS_REGISTRY

    return MODEL_DATACLASS_REGISTRY[architecture](**settings)


class LanguageModel:
    """A model with its task, loss and optimizer, built from the flags a user would type.

    Args:
        architecture: fairseq's name.
        size: layers, width, heads, vocabulary.
        length: tokens of a sample.
        positions: the longest input the model must take.
        device: "cpu" or "cuda".
        optimizer: fairseq's name.
    """

    added_symbols = 0  # by the task, to the dictionary

    def __init__(
        self,
        architecture: str,
        size: Size,
        length: int,
        positions: int,
        device: str,
        optimizer: str = "adam",
    ) -> None:
        import_quickly("user_dir")
        from fairseq import optim, options, tasks
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf

        settings = self.settings(architecture, size, length, positions)
        flags = [word for key, value in settings.items() for word in as_flag(key, value)]
        with tempfile.TemporaryDirectory() as folder:
            data = self.data_folder(Path(folder), size, length)
            words = [str(data), *flags, "--optimizer", optimizer, "--lr", "5e-4"]
            parser = options.get_training_parser()
            cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
            self.task = tasks.setup_task(cfg.task)
            self.model: nn.Module = self.task.build_model(cfg.model).to(device)
        self.cfg = cfg
        self.criterion = self.task.build_criterion(cfg.criterion)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optim.build_optimizer(cfg.optimizer, trained)
        self.device = device
        self.updates = 0

    def train_in_bfloat16(self) -> None:
        """Train as `--bf16` does: the model in bfloat16, with a float32 copy in its optimizer."""
        from fairseq import optim

        self.cfg.common.bf16 = True
        self.model.bfloat16()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optim.FP16Optimizer.build_optimizer(self.cfg, trained)

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """The folder that the task reads: here the empty `folder`, with a dictionary of numbered words."""
        words = size.vocabulary - SPECIAL_TOKENS - self.added_symbols
        lines = "".join(f"word{i} 1\n" for i in range(words))
        (folder / "dict.txt").write_text(lines, encoding="utf-8")
        return folder

    def settings(self, architecture: str, size: Size, length: int, positions: int) -> dict[str, Any]:
        """Settings of task, model and loss, by the names of fairseq's flags; embeddings are tied."""
        settings = {
            "task": "language_modeling",
            "criterion": "cross_entropy",
            "tokens_per_sample": length,
            "max_target_positions": positions,
            "arch": architecture,
            "decoder_layers": size.layers,
            "decoder_embed_dim": size.width,
            "decoder_attention_heads": size.heads,
            "decoder_ffn_embed_dim": 4 * size.width,
            "dropout": 0.1,
            "share_decoder_input_output_embed": True,
        }
        if architecture == VANILLA:
            # fairseq's defaults for these two are widths of the base size.
            settings |= {"decoder_input_dim": size.width, "decoder_output_dim": size.width}
        return settings

    @property
    def parameters(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(p.numel() for p in self.model.parameters())

    def tokens(self, rows: int, length: int) -> Tensor:
        """Random words `(rows, length)`."""
        shape = (rows, length)
        vocabulary = len(self.task.source_dictionary)
        return torch.randint(SPECIAL_TOKENS, vocabulary, shape, device=self.device)

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A training batch as fairseq's language modelling dataset makes it."""
        words = self.tokens(rows, length + 1)
        lengths = torch.full((rows,), length, device=self.device)
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": rows * length,
            "net_input": {"src_tokens": words[:, :-1].contiguous(), "src_lengths": lengths},
            "target": words[:, 1:].contiguous(),
        }

    def train_step(self, sample: dict[str, Any]) -> None:
        """Forward, backward and one update of all parameters, as fairseq's trainer does them."""
        self.task.train_step(sample, self.model, self.criterion, self.optimizer, self.updates)
        self.optimizer.multiply_grads(1.0 / sample["ntokens"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1


class LRAClassifier(LanguageModel):
    """A classifier of Long Range Arena, on random rows.

    Args: as for `LanguageModel`, `architecture` the name of an attention; and
        lra_task: the task.
    """

    pipeline: str  # for which the data would be prepared

    def __init__(
        self, architecture: str, size: Size, length: int, positions: int, device: str, lra_task: str
    ) -> None:
        self.lra_task = TASKS[lra_task]
        super().__init__(architecture, size, length, positions, device)

    def data_folder(self, folder: Path, size: Size, length: int) -> Path:
        """See `LanguageModel.data_folder`."""
        about = {
            "task": self.lra_task.name,
            "pipeline": self.pipeline,
            "inputs": self.lra_task.inputs,
            "classes": self.lra_task.classes,
            "length": length,
            "origin": "generated",
            "splits": {},
        }
        (folder / "preparation.json").write_text(json.dumps(about), encoding="utf-8")
        return super().data_folder(folder, size, length)

    def settings(self, architecture: str, size: Size, length: int, positions: int) -> dict[str, Any]:
        """See `LanguageModel.settings`; a subclass adds "arch"."""
        return {
            "task": "lra",
            "criterion": "lra",
            "max_positions": positions,
            "encoder_layers": size.layers,
            "encoder_embed_dim": size.width,
            "encoder_attention_heads": size.heads,
            "encoder_attention": architecture,
        }

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """A batch as the task makes it, on the device."""
        inputs = {}
        for name, _ in zip(("src", "other"), self.lra_task.inputs, strict=False):
            inputs[f"{name}_tokens"] = self.values(rows, length)
            inputs[f"{name}_lengths"] = torch.full((rows,), length, device=self.device)
        return {
            "id": torch.arange(rows),
            "nsentences": rows,
            "ntokens": rows * length * len(self.lra_task.inputs),
            "net_input": inputs,
            "target": torch.randint(len(self.lra_task.classes), (rows,), device=self.device),
        }

    def values(self, rows: int, length: int) -> Tensor:
        """Random tokens or grey values `(rows, length)`."""
        if self.lra_task.is_image:
            return torch.randint(GREY_VALUES, (rows, length), device=self.device).to(torch.uint8)
        return self.tokens(rows, length)


def fill_state(
    model: nn.Module, tokens: Tensor, state: dict, start: int, end: int, deadline: float = math.inf
) -> bool:
    """Bring `state`, which has seen `tokens[:, :start]`, to position `end`; False if `deadline` came first.

    This project's decoder reads a prompt in pieces. fairseq's own takes one token per call, so its cache of
    keys and values is filled with random numbers, which does not change the time.
    `deadline` is a reading of `time.monotonic`.
    """
    if type(model).__module__.startswith("fairseq."):
        _fill_cache(model, state, len(tokens), end)
        return True
    piece = 4096
    for done in range(start, end, piece):
        if time.monotonic() > deadline:
            return False
        model.decoder(tokens[:, : min(done + piece, end)], incremental_state=state, features_only=True)
    return True


def _fill_cache(model: nn.Module, state: dict, rows: int, position: int) -> None:
    for layer in model.decoder.layers:
        attention = layer.self_attn
        shape = (rows, attention.num_heads, position, attention.head_dim)
        weight = attention.k_proj.weight
        cache = {f"prev_{name}": weight.new_empty(shape).normal_() for name in ("key", "value")}
        attention._set_input_buffer(state, cache)


def copy_state(state: dict) -> dict:
    """A copy of fairseq's `incremental_state` that shares no tensor with it."""
    return {
        key: {name: x.clone() if isinstance(x, Tensor) else x for name, x in entry.items()}
        for key, entry in state.items()
    }
