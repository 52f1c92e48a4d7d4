"""A checkpoint of fairseq's or this project's: its record of the training, and the model in it.

A RoBERTa encoder comes with the flags that build one again, and with its classification heads.

Files are read with torch's safe loader only: a pickle that would run code raises UserError.
"""

import re
import zipfile
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from lab.data.prepared import PreparedData
from lab.errors import UserError, suggestion
from lab.run.folder import LAST
from lab.run.recipe import as_flag
from user_dir.checks.checkpoints import UNREADABLE, check_finite, read_safely
from user_dir.models import LinearAttentionRoberta

ENCODER = "encoder.sentence_encoder."
HEADS = "classification_heads."
POSITIONS_BEFORE_THE_FIRST = 2  # fairseq counts positions from the padding index plus one
# Subjects of models without text, by task.
NOT_TEXT = {"lra": "Long Range Arena", "pixels": "images", "image_classification": "images"}

Groups = Mapping[str, dict[str, Any]]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Inside the block, a configuration with another layout than fairseq's raises UserError."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OmegaConfBaseException):
        raise UserError(f"{path} {UNREADABLE}") from None


def configured(read: Callable[["Checkpoint"], Any]) -> cached_property:
    """A property that is read from the configuration, see `readable`."""

    @wraps(read)
    def checked(checkpoint: "Checkpoint") -> Any:
        with readable(checkpoint.path):
            return read(checkpoint)

    return cached_property(checked)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint of any task; entries that only some tasks have are read on request.

    `state` is the content of the file, with mapped tensors. `overrides` replace settings of model and task
    when the model is loaded. Properties raise UserError where the configuration cannot be read.
    """

    path: Path
    state: Mapping[str, Any] = field(repr=False)
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """The number of updates behind the weights."""
        return (self.state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)

    @property
    def score(self) -> float | None:
        """The last validation score before the save, by the metric that chooses the best checkpoint."""
        return (self.state.get("extra_state") or {}).get("val_loss")

    @property
    def averaged(self) -> list[str]:
        """The checkpoints whose average the weights are, see `average`; none where they were trained."""
        return self.state.get("averaged") or []

    @property
    def is_best(self) -> bool:
        """Whether it was the best of its run when it was saved."""
        return self.score is not None and self.score == self.state["extra_state"].get("best")

    @configured
    def groups(self) -> Groups:
        """The settings by fairseq's groups."""
        return groups_of(self.state.get("cfg") or self.state.get("args"))

    @configured
    def settings(self) -> dict[str, Any]:
        """The settings of the model."""
        return model_settings(self.groups)

    @configured
    def task_settings(self) -> dict[str, Any]:
        """The settings of the task."""
        return self.groups.get("task") or {}

    @property
    def task_name(self) -> str | None:
        """The name of fairseq's task."""
        return self.task_settings.get("_name")

    @configured
    def architecture(self) -> str:
        """The name of the model."""
        return str(self.settings.get("_name") or self.settings.get("arch"))

    @configured
    def attention(self) -> str:
        """The layer plan: the given one, or the architecture's own."""
        side = "encoder" if "encoder_layers" in self.settings else "decoder"
        given = self.settings.get(f"{side}_attention")
        return given or MODEL_REGISTRY[self.architecture].default_plan(self.settings[f"{side}_layers"])

    @configured
    def seed(self) -> int:
        """The seed of the training."""
        return self.groups["common"]["seed"]

    @configured
    def batch_size(self) -> int:
        """Samples of a batch in one process, 1 where tokens were counted instead."""
        return self.groups["dataset"]["batch_size"] or 1

    @configured
    def tokens_per_sample(self) -> int:
        """Tokens of a sample in training."""
        return int(self.task_settings.get("tokens_per_sample") or self.settings["tokens_per_sample"])

    @configured
    def max_positions(self) -> int:
        """Tokens of the longest sequence that a model of text takes."""
        learned = self.weights.get(f"{ENCODER}embed_positions.weight")
        if learned is not None:
            return learned.shape[0] - POSITIONS_BEFORE_THE_FIRST
        names = ("max_target_positions", "max_positions")
        given = next((self.settings[name] for name in names if self.settings.get(name)), None)
        return int(given or self.tokens_per_sample)

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """The weights, an encoder's under its names of today.

        Older RoBERTa checkpoints, the published ones among them, say decoder.
        """
        weights = self.state["model"]
        old = any(key.startswith("decoder.sentence_encoder.") for key in weights)
        if not old:
            return dict(weights)
        return {re.sub(r"^decoder\.", "encoder.", key): tensor for key, tensor in weights.items()}

    @property
    def vocabulary(self) -> int | None:
        """Entries of the dictionary of a model of text; None if it has other embeddings than fairseq's."""
        for embedding in ("decoder.embed_tokens.", f"{ENCODER}embed_tokens."):
            if f"{embedding}weight" in self.weights:
                return self.weights[f"{embedding}weight"].shape[0]
        clusters = [
            tensor.shape[0]
            for name, tensor in self.weights.items()
            if name.startswith("decoder.embed_tokens.embeddings.") and name.endswith(".0.weight")
        ]
        return sum(clusters) or None

    @property
    def heads(self) -> dict[str, int]:
        """The classes of each classification head."""
        end = ".out_proj.weight"
        return {
            key.removeprefix(HEADS).removesuffix(end): tensor.shape[0]
            for key, tensor in self.weights.items()
            if key.startswith(HEADS) and key.endswith(end)
        }

    def on(self, data: Path, **overrides: Any) -> "Checkpoint":
        """The same with the prepared folder `data` in place of the training's, and these settings."""
        return replace(self, overrides={**overrides, "data": str(data.absolute())})

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Any, Any]:
        models, config, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(self.path)], arg_overrides=dict(self.overrides)
        )
        return models[0].eval(), config, task

    @property
    def model(self) -> nn.Module:
        """The model in evaluation mode, built when it is first asked for."""
        return self._loaded[0]

    @property
    def config(self) -> Any:
        """fairseq's whole configuration, as the model was loaded with it."""
        return self._loaded[1]

    @property
    def task(self) -> Any:
        """The model's task."""
        return self._loaded[2]

    @property
    def parameters(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def check_dictionary(
        self, data: PreparedData, size: int | None = None, named_by: str = "the data folder"
    ) -> None:
        """UserError if a corpus' dictionary, of `size` entries if known, differs from the training's.

        `named_by` is the option that names the corpus.
        """
        if size is not None and self.vocabulary not in (None, size):
            raise UserError(
                f"{data.dictionary} has {size} entries, but {self.path} was trained with "
                f"{self.vocabulary}; give {named_by} with the dictionary of its training"
            )
        trained_with = self.path.parent / "dict.txt"
        if trained_with.is_file() and trained_with.read_bytes() != data.dictionary.read_bytes():
            raise UserError(
                f"{data.dictionary} differs from {trained_with}, with which {self.path.name} was "
                f"trained; give {named_by} with that dictionary"
            )


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint of any task; UserError if it is not one, damaged, or holds code."""
    return Checkpoint(path, read_safely(path))


def read_language_model(path: Path) -> Checkpoint:
    """A checkpoint of a language model; UserError if it is not one, or damaged."""
    checkpoint = read_checkpoint(path)
    if subject := NOT_TEXT.get(checkpoint.task_name or ""):
        raise UserError(f"{path} holds a model of {subject}, not a language model")
    if any(key.startswith("encoder.") for key in checkpoint.weights):
        raise UserError(f"{path} holds an encoder; evaluate it with scripts/lab.sh evaluate mlm")
    if not any(key.startswith("decoder.") for key in checkpoint.weights):
        raise UserError(f"{path} holds no language model")
    return checkpoint


def check_reads_text(path: Path, done: str) -> None:
    """UserError for a model of Long Range Arena or of images, which cannot be `done` (such as "exported")."""
    if subject := NOT_TEXT.get(read_checkpoint(path).task_name or ""):
        raise UserError(
            f"{path} holds a model of {subject}; only language models and RoBERTa encoders can be {done}"
        )


def newest_whole(folder: Path) -> Checkpoint | None:
    """The whole checkpoint of `folder` with the most updates, None if there is none."""
    return _survey(folder)[0]


def _survey(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of the run itself, and the names of the damaged ones."""
    found = {path: read_whole(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    whole = (one for one in found.values() if one and not one.averaged)
    newest = max(whole, key=lambda one: (one.updates, one.path.name == LAST), default=None)
    return newest, [path.name for path, one in found.items() if one is None]


def read_whole(path: Path) -> Checkpoint | None:
    """A checkpoint; None if the file is damaged or not a checkpoint, for whatever reason.

    Raises PermissionError for an unreadable file: it may be whole.
    """
    try:
        checkpoint = read_checkpoint(path)
        with zipfile.ZipFile(path) as archive:
            return None if archive.testzip() else checkpoint
    except PermissionError:
        raise
    except (UserError, zipfile.BadZipFile, OSError):
        return None


def find_resume_point(folder: Path, how: str = "add --fresh to move them aside") -> Checkpoint | None:
    """Where the run in `folder` resumes; None if the folder holds no checkpoint.

    UserError if all are damaged: a run starts at update 1 in their place only if asked to, as `how` says.
    """
    if (folder / LAST).is_dir():
        raise UserError(f"{folder / LAST} is a folder where a checkpoint belongs; move it away")
    newest, damaged = _survey(folder)
    if newest and damaged:
        print(f"passing over {', '.join(damaged)}, which cannot be read", flush=True)
    if newest is None and damaged:
        raise UserError(
            f"no checkpoint in {folder} is whole ({', '.join(damaged)}); copy them again, or {how} "
            "and start at update 1"
        )
    return newest


def is_half_written(path: Path) -> bool:
    """Whether the file is only the beginning of a checkpoint (torch writes zip archives)."""
    with path.open("rb") as file:
        start = file.read(4)
    return start in (b"", b"PK\x03\x04") and not zipfile.is_zipfile(path)


def whole_checkpoint(path: Path) -> Path:
    """`path`, or the newest complete checkpoint beside it if an interrupted save has left half a file.

    Prints which one it takes. UserError if there is neither.
    """
    if not path.exists():
        raise UserError(f"no checkpoint {path}; name another one")
    if path.is_dir():
        raise UserError(f"{path} is a folder where a checkpoint belongs; name a file in it")
    if not path.is_file() or not is_half_written(path):
        return path
    newest = newest_whole(path.parent)
    if newest is None:
        raise UserError(f"{path} is incomplete, without another checkpoint beside it; train again")
    print(f"{path.name} is incomplete; taking {newest.path.name}", flush=True)
    return newest.path


def result_beside(path: Path, ending: str) -> Path:
    """The file of a result beside a checkpoint."""
    return path.with_name(short_name(path) + ending)


def short_name(path: Path) -> str:
    """The name of a checkpoint without `.pt`; another ending may tell it from others, as in lm.1000."""
    return path.name.removesuffix(".pt")


def usual_device() -> torch.device:
    """Where to compute: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def groups_of(configuration: Any) -> Groups:
    """A configuration's settings by fairseq's groups; in old ones without groups, each gets all settings."""
    if isinstance(configuration, Namespace):
        return defaultdict(dict, dict.fromkeys(("model", "task", "common", "dataset"), vars(configuration)))
    settings = OmegaConf.create(configuration, flags={"allow_objects": True})
    groups = OmegaConf.to_container(settings, resolve=False)
    return {name: vars(found) if isinstance(found, Namespace) else found for name, found in groups.items()}


def model_settings(groups: Groups) -> dict[str, Any]:
    """A model's settings without references to others, such as `${task.tokens_per_sample}`."""
    settings = groups.get("model") or {}
    return {key: value for key, value in settings.items() if not str(value).startswith("${")}


def default_settings(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of an architecture of the plugin with the layer plan of `settings`."""
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    for plan in {"decoder_attention", "encoder_attention"} & set(settings):
        setattr(config, plan, settings[plan])
    MODEL_REGISTRY[architecture].fill_in_options(config)
    return vars(config)


def read_encoder(path: Path) -> Checkpoint:
    """Read an encoder's checkpoint; UserError unless it is a RoBERTa of this project."""
    checkpoint = read_checkpoint(path)
    if f"{ENCODER}embed_tokens.weight" not in checkpoint.weights:
        raise UserError(f"{path} holds no RoBERTa encoder")
    architecture_of(checkpoint)
    return checkpoint


def architecture_of(checkpoint: Checkpoint) -> str:
    """The name under which the project builds an encoder; UserError if it does not build it."""
    name = own_name(checkpoint.architecture)
    if name not in encoders():
        raise UserError(
            f"{checkpoint.path} holds a {name}, which is not an encoder of this project"
            f"{suggestion(name, encoders())}"
        )
    return name


def own_name(architecture: str) -> str:
    """The project's name of an architecture: fairseq's own RoBERTa is `roberta_softmax`."""
    return "roberta_softmax" if architecture in ("roberta", "roberta_base", "roberta_large") else architecture


def encoders() -> list[str]:
    """The names of the architectures of this project's encoders."""
    return [name for name, kind in MODEL_REGISTRY.items() if issubclass(kind, LinearAttentionRoberta)]


def encoder_flags(checkpoint: Checkpoint) -> list[str]:
    """`--arch` and the settings that differ from its defaults, as flags of `fairseq-train`."""
    architecture = architecture_of(checkpoint)
    settings = encoder_settings(architecture, checkpoint.settings)
    defaults = default_settings(architecture, settings)
    words = ["--arch", architecture]
    for key, value in settings.items():
        if value != defaults[key] or key == "encoder_attention":
            words += as_flag(key, value, defaults[key])
    return words


def encoder_settings(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `settings` of a model that the architecture has, without its positions."""
    fields = MODEL_DATACLASS_REGISTRY[architecture].__dataclass_fields__
    return {key: settings[key] for key in fields if key in settings and key not in ("_name", "max_positions")}


def read_dictionary(folder: Path) -> Dictionary:
    """The dictionary next to a checkpoint, including the mask."""
    path = folder / "dict.txt"
    if not path.is_file():
        raise UserError(f"{path} is missing; it belongs beside the checkpoint")
    dictionary = Dictionary.load(str(path))
    dictionary.add_symbol("<mask>")
    return dictionary


def build_encoder(
    architecture: str, settings: Mapping[str, Any], max_positions: int, dictionary: Dictionary
) -> LinearAttentionRoberta:
    """A model of an architecture with a model's `settings`, as far as it has them; its weights are drawn."""
    config = MODEL_DATACLASS_REGISTRY[architecture]()
    for key, value in encoder_settings(architecture, settings).items():
        setattr(config, key, value)
    config.max_positions = max_positions
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return MODEL_REGISTRY[architecture].build_model(config, task)


def count_parameters(checkpoint: Checkpoint, vocabulary: Path) -> int:
    """Parameters of the pre-trained model with its masked-LM head, tied weights once, without heads of tasks.

    `vocabulary` is a folder with its dictionary.
    """
    model = _without_weights(checkpoint, read_dictionary(vocabulary))
    return sum(parameter.numel() for parameter in model.parameters())


def _without_weights(checkpoint: Checkpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    name = architecture_of(checkpoint)
    return build_encoder(name, checkpoint.settings, checkpoint.max_positions, dictionary)


def load_encoder(checkpoint: Checkpoint, dictionary: Dictionary) -> LinearAttentionRoberta:
    """The model with its classification heads, in evaluation mode."""
    if len(dictionary) != checkpoint.vocabulary:
        raise UserError(
            f"the dictionary has {len(dictionary)} entries with the mask, but {checkpoint.path} was trained "
            f"with {checkpoint.vocabulary}; it belongs to another tokeniser"
        )
    model = _without_weights(checkpoint, dictionary)
    state = dict(checkpoint.state["model"])
    check_finite(str(checkpoint.path), state)
    for name, classes in checkpoint.heads.items():
        inner = state[f"{HEADS}{name}.dense.weight"].shape[0]
        model.register_classification_head(name, classes, inner)
    model.upgrade_state_dict(state)
    model.load_state_dict(state)
    return model.eval()
