"""Inputs of an analysis: a trained model with sequences of a prepared corpus, and the log of a run."""

import re
import statistics
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from fairseq.data import data_utils
from torch import Tensor, nn

from lab.data.prepared import CORPUS, PreparedData, identify, open_prepared
from lab.errors import UserError, suggestion
from lab.figures.analyse import LONGEST
from lab.files import fingerprint, sha256_of, shown_path
from lab.methods import ANALYSED, ATTENTIONS, VANILLA
from lab.run.checkpoint import Checkpoint, check_reads_text, read_checkpoint, readable
from lab.run.folder import LAST, LOG
from lab.run.log import read_log
from user_dir.analysis import AttentionInput, record_inputs, relative_deviation
from user_dir.analysis.capture import attentions

ANALYSED_HERE = "analysed"
AFTER_WARMUP = "after warm-up"
SECOND_HALF = "second half"


def model_label(checkpoint: Checkpoint) -> str:
    """A model's name in a figure."""
    return ANALYSED[method_of(checkpoint)].label


def is_masked_lm(checkpoint: Checkpoint) -> bool:
    """Whether it is an encoder."""
    return hasattr(checkpoint.model, "encoder")


def training_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """A model's size and budget, for a record."""
    dataset = checkpoint.config.dataset
    tokens = (dataset.batch_size or 0) * checkpoint.tokens_per_sample or dataset.max_tokens
    return size_and_budget(checkpoint.settings, checkpoint.config.task.data, checkpoint.updates, tokens)


def about(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's entry in a record."""
    path = checkpoint.path
    name = f"{run_name(path.parent)}/{path.name}"
    return {"checkpoint": name, "sha256": sha256_of(path)[:12], "architecture": checkpoint.architecture}


def size_and_budget(settings: dict[str, Any], data: str, updates: int, tokens: float) -> dict[str, Any]:
    """The entry in a record for a model with these settings, trained on `data` with `tokens` per update."""
    side = "encoder" if "encoder_layers" in settings else "decoder"
    return {
        "layers": settings[f"{side}_layers"],
        "width": settings[f"{side}_embed_dim"],
        "corpus": Path(data).name,
        "updates": updates,
        "tokens_per_update": tokens,
    }


def run_name(folder: Path) -> str:
    """The name of a folder's run in a figure; a study's RUN/seed1 becomes RUN-seed1."""
    inside = re.fullmatch(r"seed\d+", folder.name) is not None
    return f"{folder.parent.name}-{folder.name}" if inside else folder.name


def method_of(checkpoint: Checkpoint) -> str:
    """The key of `methods.ANALYSED`: the mechanism of all layers, or TransNormer's name.

    UserError for a mixture of attentions that has no colour.
    """
    architecture, settings = checkpoint.architecture, checkpoint.settings
    plan = settings.get("encoder_attention") or settings.get("decoder_attention")
    if plan:
        name, *others = {part.partition("*")[0].strip() for part in plan.split(",")}
        if not others and name in ANALYSED:
            return name
        if not others and "+" not in name:
            raise UserError(f"no figure knows the attention {name!r}; give it a row in lab/methods.py")
        raise UserError(
            f"the layer plan {plan!r} mixes attentions; a figure compares models with one in all layers, or "
            "TransNormer's two"
        )
    if architecture in (VANILLA, "roberta", "roberta_base"):
        return "softmax"
    for key, method in ATTENTIONS.items():
        if architecture in (method.language_model, method.encoder_architecture):
            return key
    raise UserError(
        f"{architecture} is not an architecture of this project{suggestion(architecture, list(ATTENTIONS))}"
    )


def load(path: Path, data: PreparedData) -> Checkpoint:
    """A checkpoint of fairseq's or this project's, its model loaded.

    Raises UserError for another file, and for a model with another dictionary or without attention.
    """
    checkpoint = read_checkpoint(path).on(data.folder)
    checkpoint.check_dictionary(data, named_by="--data")
    attentions(checkpoint.model)
    return checkpoint


def sequences(trained: Checkpoint, data: PreparedData, options: Namespace) -> Tensor:
    """Whole sequences of the split as the model reads them, `(B, N)`; no padding.

    Encoders' begin with fairseq's first token, as in pre-training. UserError if the split is too short, and
    for matrices that need much memory, unless --force is given.
    """
    length = options.length or trained.tokens_per_sample
    if length > LONGEST and not options.force:
        raise UserError(
            f"a matrix of {length:,} tokens takes {8 * length**2 / 2**20:,.0f} MiB a head and sequence; "
            f"choose --length {LONGEST} or less, or add --force"
        )
    if length > trained.tokens_per_sample:
        raise UserError(
            f"--length is {length}, but {trained.path} was trained with sequences of "
            f"{trained.tokens_per_sample}; give {trained.tokens_per_sample} or less"
        )
    if options.masked:
        return _masked(trained, options, length)
    first = is_masked_lm(trained)
    body = length - first
    tokens = _tokens(data, trained.task.source_dictionary, options.split, body * options.sequences)
    count = min(len(tokens) // max(body, 1), options.sequences)
    if not count or body < 1:
        raise UserError(
            f"the {options.split} split of {data.folder} has {len(tokens)} tokens, too few for one sequence "
            f"of {length}; choose a smaller --length or another --split"
        )
    rows = tokens[: count * body].view(count, body)
    if first:
        rows = torch.nn.functional.pad(rows, (1, 0), value=trained.task.source_dictionary.bos())
    return rows


def _tokens(data: PreparedData, dictionary: Any, split: str, count: int) -> Tensor:
    """The first `count` tokens of a split, or all."""
    rows = data_utils.load_indexed_dataset(str(data.folder / split), dictionary)
    found, total = [], 0
    for i in range(len(rows)):
        found.append(rows[i].long())
        total += len(found[-1])
        if total >= count:
            break
    return torch.cat(found)[:count]


def _masked(trained: Checkpoint, options: Namespace, length: int) -> Tensor:
    """The same with tokens masked as in pre-training, with the task's seed."""
    if not is_masked_lm(trained):
        raise UserError(f"--masked is for encoders, but {trained.path} holds a language model; leave it out")
    trained.task.load_dataset(options.split)
    dataset = trained.task.dataset(options.split)
    rows = (dataset[i]["net_input.src_tokens"] for i in range(min(len(dataset), options.sequences)))
    whole = [row[:length] for row in rows if len(row) >= length]
    if not whole:
        raise UserError(
            f"the {options.split} split has no sequence of {length} tokens; choose a smaller --length"
        )
    return torch.stack(whole)


def inputs(model: nn.Module, tokens: Tensor) -> list[AttentionInput]:
    """The inputs of a model's attentions for `tokens: (B, N)`."""
    with torch.no_grad():
        return record_inputs(model, lambda: model(tokens))


def open_split(options: Namespace, checkpoints: Iterable[Path]) -> PreparedData:
    """The corpus of --data with its split checked; UserError, too, if a checkpoint's model reads no text."""
    for path in checkpoints:
        check_reads_text(path.absolute(), ANALYSED_HERE)
    return open_prepared(options.data.absolute(), (options.split,))


def mark_of(data: PreparedData) -> str:
    """Identifies a corpus, whatever its folder."""
    identity = identify(data.folder)
    return fingerprint([{key: value for key, value in identity.items() if key != CORPUS}])


def chosen_layers(found: Sequence[AttentionInput], layers: str) -> list[AttentionInput]:
    """Select layers by `layers`, "all" or numbers with commas; UserError if one does not exist."""
    if layers == "all":
        return list(found)
    numbers = layers.split(",")
    known = [one.name.removeprefix("layer").partition(".")[0] for one in found]
    if unknown := [number for number in numbers if number not in known]:
        raise UserError(f"--layers names {unknown[0]!r}, but the model has layers 0 to {known[-1]}")
    return [one for one, number in zip(found, known, strict=True) if number in numbers]


@dataclass(frozen=True)
class LoggedRun:
    """A run; `records` maps each logged update to fairseq's figures, `valid` to the figures of validation."""

    folder: Path
    method: str
    seed: int
    warm_up: int
    scale_window: int | None
    records: dict[int, dict[str, float]]
    valid: dict[int, float]
    settings: dict
    data: str

    @property
    def unit(self) -> str:
        """The unit of its losses."""
        return "bits per masked token" if "encoder_layers" in self.settings else "bits per token"

    def training(self) -> dict[str, Any]:
        """The model's size and budget, for a record."""
        sizes = [record["wpb"] for record in self.records.values() if "wpb" in record]
        return size_and_budget(self.settings, self.data, max(self.records), statistics.median(sizes))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Updates and values of a figure, where it was logged."""
        pairs = [(update, record[key]) for update, record in sorted(self.records.items()) if key in record]
        return [update for update, _ in pairs], [value for _, value in pairs]

    def deviations(self) -> dict[str, float]:
        """R1, the relative deviation of gradient norms: of all updates, after warm-up, in the second half."""
        updates, norms = self.series("gnorm")
        parts = {
            "all": norms,
            AFTER_WARMUP: [y for x, y in zip(updates, norms, strict=True) if x > self.warm_up],
            SECOND_HALF: norms[len(norms) // 2 :],
        }
        return {name: relative_deviation(values) for name, values in parts.items() if values}


def what_was_read(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """The runs that a record was made from."""
    return {"runs": {run_name(run.folder): sha256_of(run.folder / LOG)[:12] for run in runs}}


def read_logged_run(folder: Path) -> LoggedRun:
    """The log of a run, with the last record of a repeated update; UserError if the folder holds no run."""
    folder = folder.absolute()
    log = folder / LOG
    if not log.is_file():
        raise UserError(f"no run {shown_path(folder)}: it has no {LOG}; see scripts/study.sh analysis_runs")
    found = read_log(log)
    records = {int(record["num_updates"]): record for record in found["train_inner"]}
    if not records:
        raise UserError(
            f"{shown_path(log)} holds no update; train with --log-interval 1 and --log-format json, as "
            "scripts/study.sh analysis_runs does"
        )
    valid = {int(record["valid_num_updates"]): record["valid_loss"] for record in found["valid"]}
    last = folder / LAST
    if not last.is_file():
        raise UserError(f"{shown_path(folder)} holds no {last.name}, which says what was trained")
    checkpoint = read_checkpoint(last)
    groups = checkpoint.groups
    with readable(checkpoint.path):
        return LoggedRun(
            folder=folder,
            method=method_of(checkpoint),
            seed=checkpoint.seed,
            warm_up=int(groups["lr_scheduler"].get("warmup_updates") or 0),
            scale_window=groups["common"]["fp16_scale_window"],
            records=records,
            valid=valid,
            settings=checkpoint.settings,
            data=checkpoint.task_settings["data"],
        )


def check_every_update(run: LoggedRun) -> None:
    """UserError unless every update was logged: means over an interval hide the spread."""
    updates = sorted(run.records)
    interval = min((b - a for a, b in pairwise(updates)), default=1)
    if interval != 1 or updates[0] != 1:
        raise UserError(
            f"{shown_path(run.folder)} logs every {max(interval, updates[0])} updates, whose means hide the "
            "spread of gradients; train with --log-interval 1 --clip-norm 0, as scripts/study.sh "
            "analysis_runs does"
        )
