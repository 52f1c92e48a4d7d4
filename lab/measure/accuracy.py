"""Accuracy: of classifiers (Long Range Arena, images), and of language models that copy or recall.

Copying is measured with the true prefix before every symbol, and in free-running generation.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel, FairseqLanguageModel
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda
from torch import Tensor

from lab.data.lra.tasks import TASKS
from lab.data.prepared import identify
from lab.errors import UserError
from lab.files import read_json, shown_path
from lab.measure import TrainedRun
from lab.run.checkpoint import Checkpoint, default_settings, read_checkpoint
from lab.run.folder import BEST, LOG, LRA_RUN
from lab.run.kinds import Classification, check_lra_data, load_image_model, read_lra
from lab.run.log import read_log, run_figures
from user_dir.criterions import ClassificationCriterion
from user_dir.tasks.copy_data import prompts
from user_dir.tasks.lra_data import LRAData

# Fields that the model fills in from the data, or that a result has elsewhere.
NOT_OPTIONS = (
    "_name",
    "encoder_attention",
    "max_positions",
    "vocabulary_size",
    "glu_dim",
    "classifier_dim",
    "allow_changed",
)
CONVERGED_LOSS, CONVERGED_ACCURACY = 0.01, 0.999  # of copying


def batches_of(
    task: FairseqTask, split: str, device: torch.device, **limits: Any
) -> Iterator[dict[str, Any]]:
    """The batches of a split in order, on the device; `limits` go to fairseq's batch iterator."""
    task.load_dataset(split)
    batches = task.get_batch_iterator(task.dataset(split), **limits)
    for batch in batches.next_epoch_itr(shuffle=False):
        yield move_to_cuda(batch, device) if device.type == "cuda" else batch


@torch.inference_mode()
def count_correct(
    model: BaseFairseqModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Examples, correct answers, accuracy in percent and mean loss in bits of a whole split."""
    model = model.to(device).eval()
    criterion = ClassificationCriterion(task)
    loss, correct, count = 0.0, 0, 0
    limits = {"max_sentences": batch_size, "max_positions": model.max_positions()}
    for batch in batches_of(task, split, device, **limits):
        _, rows, output = criterion(model, batch)
        loss, correct, count = loss + float(output["loss"]), correct + int(output["ncorrect"]), count + rows
    if count == 0:
        raise UserError(f"{split} holds no example")
    return {
        "examples": count,
        "correct": correct,
        "accuracy": 100 * correct / count,
        "loss_bits": loss / count / math.log(2),
    }


def evaluate_lra(
    checkpoint: Checkpoint, data: LRAData, splits: Iterable[str], device: torch.device
) -> Iterator[dict[str, Any]]:
    """The result of each split as it is written to JSON, with all that a table must say about the run."""
    check_lra_data(checkpoint, data)
    checkpoint, preset = checkpoint.on(data.folder), checkpoint.architecture
    defaults = default_settings(preset, checkpoint.settings)
    beside = checkpoint.path.with_name(LRA_RUN)
    run = read_json(beside) if beside.is_file() else {}
    about = {
        "checkpoint": shown_path(checkpoint.path),
        "task": checkpoint.task_settings["lra_task"],
        "preset": preset,
        "attention": checkpoint.attention,
        "options": {
            key: checkpoint.settings[key]
            for key, default in defaults.items()
            if key not in NOT_OPTIONS and checkpoint.settings.get(key, default) != default
        },
        "parameters": checkpoint.parameters,
        "steps": checkpoint.groups["optimization"]["max_update"],
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "training_data": run.get("data"),
        "data": identify(data.folder),
    }
    for split in splits:
        found = count_correct(checkpoint.model, checkpoint.task, split, checkpoint.batch_size, device)
        yield {**about, "split": split, **found}


def most_frequent(train: np.ndarray, other: np.ndarray) -> float:
    """The accuracy on `other` labels, in percent, of always answering the most frequent one of `train`."""
    return 100 * float((np.asarray(other) == np.bincount(train).argmax()).mean())


def measure_lra(run: TrainedRun) -> dict[str, Any]:
    """Figures of a run for a study; `published_sizes`: whether the data have the benchmark's sizes."""
    [found] = evaluate_lra(read_lra(run.checkpoint), run.data, ("test",), run.device)
    examples = found["data"]["examples"]
    return {
        **{key: found[key] for key in ("parameters", "examples", "correct", "accuracy", "loss_bits")},
        "most_frequent": most_frequent(*(run.data.split(name).labels for name in ("train", "test"))),
        "best_update": found["updates"],
        "chosen_on_valid": run.checkpoint.name == BEST,
        "published_sizes": sum(examples.values()) == sum(TASKS[run.data.task].sizes.values()),
    }


def about_images(checkpoint: Checkpoint) -> dict[str, Any]:
    """An image model's entry in a result."""
    return {
        "architecture": checkpoint.architecture,
        "attention": checkpoint.attention,
        "parameters": checkpoint.parameters,
    }


def measure_images(run: TrainedRun) -> dict[str, Any]:
    """Accuracy on test (valid if there is no test), and figures of the log."""
    checkpoint = load_image_model(run.checkpoint, run.data.folder, Classification.task)
    split = "test" if "test" in run.data.manifest["splits"] else "valid"
    size = checkpoint.batch_size
    return {
        **about_images(checkpoint),
        "training_images": run.data.manifest["splits"]["train"]["images"],
        "split": split,
        **count_correct(checkpoint.model, checkpoint.task, split, size, run.device),
        "most_frequent_class": most_frequent(*(run.data.labelled(name)[1] for name in ("train", split))),
        **logged(run.folder / LOG),
    }


def logged(log: Path) -> dict[str, Any]:
    """From the log of a run: the gradient norm, the largest 1 / loss scale, alpha and beta by layer."""
    inner = {int(record["num_updates"]): record for record in read_log(log)["train_inner"]}
    norms = [record["gnorm"] for record in inner.values()]
    scales = [record["loss_scale"] for record in inner.values() if record.get("loss_scale")]
    return {
        "gradient_norm": statistics.median(norms) if norms else None,
        "largest_inverse_loss_scale": 1 / min(scales) if scales else None,
        "exponents": {
            key: [(update, record[key]) for update, record in sorted(inner.items()) if key in record]
            for key in sorted({key for record in inner.values() for key in record})
            if key.startswith(("alpha/", "beta/"))
        },
    }


@torch.inference_mode()
def copying(
    model: FairseqLanguageModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Loss in nats, token accuracy and exact-match rate of a whole split.

    `accuracy` is of the targets that count, `exact` of whole sequences, `by_position` of the separator and of
    each symbol behind it; `free_...` the same of the model's own continuation of sequence and separator,
    where every answer becomes the next input.
    """
    model = model.to(device).eval()
    pad, loss, counted = task.target_dictionary.pad(), 0.0, 0
    right, free = [], []
    for batch in batches_of(task, split, device, max_sentences=batch_size):
        target = batch["target"]
        logits = model(**batch["net_input"])[0].float()
        loss += float(F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="sum"))
        counted += batch["ntokens"]
        for row, wanted in zip(logits.argmax(-1).eq(target), target.ne(pad), strict=True):
            right.append(row[wanted].cpu())
        prompt, n = prompts(batch, pad)
        written = write_on(model, prompt, n)
        for i, count in enumerate(n.tolist()):
            free.append(written[i, :count].eq(prompt[i, :count]).cpu())
    return {
        "examples": len(right),
        "counted": counted,
        "loss_nats": loss / counted,
        **_shares(right),
        **{f"free_{name}": value for name, value in _shares(free).items()},
    }


def write_on(model: FairseqLanguageModel, prompt: Tensor, n: Tensor) -> Tensor:
    """The likeliest symbols after `prompt: (B, T)`, whose rows are n + 1 long, `n: (B,)`; `(B, max n)`."""
    state: dict[str, Any] = {}
    logits = model(prompt, incremental_state=state)[0]
    token = logits[torch.arange(len(prompt), device=prompt.device), n].argmax(-1)
    written = [token]
    for _ in range(int(n.max()) - 1):
        token = model(token[:, None], incremental_state=state)[0][:, -1].argmax(-1)
        written.append(token)
    return torch.stack(written, dim=1)


def _shares(rows: list[Tensor]) -> dict[str, Any]:
    """Shares of right answers (True): of all, of whole rows, and at each place."""
    longest = max(len(row) for row in rows)
    at_place = [[row[place] for row in rows if len(row) > place] for place in range(longest)]
    return {
        "accuracy": float(torch.cat(rows).double().mean()),
        "exact": sum(bool(row.all()) for row in rows) / len(rows),
        "by_position": [float(torch.stack(answers).double().mean()) for answers in at_place],
    }


def measure_copying(run: TrainedRun) -> dict[str, Any]:
    """The figures of copying on test; `converged_at` is the first logged update with a converged loss."""
    trained = read_checkpoint(run.checkpoint)
    found = copying(trained.model, trained.task, "test", trained.batch_size, run.device)
    train = run_figures(run.folder / LOG)["curves"].get("train", [])
    below = (update for update, bits in train if bits * math.log(2) < CONVERGED_LOSS)
    return {
        "parameters": trained.parameters,
        **found,
        "converged": found["loss_nats"] < CONVERGED_LOSS and found["accuracy"] > CONVERGED_ACCURACY,
        "converged_at": next(below, None),
    }


# Associative recall: how many questions a model answers, and how much its decoding state holds.


@torch.inference_mode()
def recalling(
    model: FairseqLanguageModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Loss in nats and accuracy of all questions of a split, and the share of rows without a mistake.

    `by_pairs` has the accuracy on the rows of each number of pairs.
    """
    model = model.to(device).eval()
    pad, loss, asked, missed = task.target_dictionary.pad(), 0.0, [], []
    for batch in batches_of(task, split, device, max_sentences=batch_size):
        target = batch["target"]
        logits = model(**batch["net_input"])[0].float()
        loss += float(F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="sum"))
        asked.append(target.ne(pad).sum(1).cpu())
        missed.append((logits.argmax(-1).ne(target) & target.ne(pad)).sum(1).cpu())
    questions, wrong = torch.cat(asked), torch.cat(missed)
    counted = int(questions.sum())
    groups = {pairs: questions.eq(pairs) for pairs in questions.unique().tolist()}
    return {
        "examples": len(questions),
        "counted": counted,
        "loss_nats": loss / counted,
        "accuracy": 1 - int(wrong.sum()) / counted,
        "exact": float(wrong.eq(0).double().mean()),
        "by_pairs": {
            str(pairs): 1 - int(wrong[of].sum()) / int(questions[of].sum()) for pairs, of in groups.items()
        },
    }


@torch.inference_mode()
def state_numbers(model: FairseqLanguageModel, row: Tensor) -> int:
    """How many floating-point numbers decoding keeps of one row `(1, N)` once it has been read."""
    state: dict[str, Any] = {}
    model.eval()(row, incremental_state=state)
    found: dict[int, Tensor] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            found[id(value)] = value
        elif isinstance(value, dict):
            for one in value.values():
                collect(one)

    collect(state)
    return sum(tensor.numel() for tensor in found.values())


def measure_recall(run: TrainedRun) -> dict[str, Any]:
    """The figures of recall on test."""
    trained = read_checkpoint(run.checkpoint)
    found = recalling(trained.model, trained.task, "test", trained.batch_size, run.device)
    row = trained.task.dataset("test")[0]["source"][None].to(run.device)
    return {"parameters": trained.parameters, **found, "state_numbers": state_numbers(trained.model, row)}
