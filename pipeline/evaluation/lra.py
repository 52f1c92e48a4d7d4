"""Accuracy of a model of Long Range Arena (the command behind evaluate_lra.sh)."""

import math
import sys
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda

from pipeline.commands.evaluate_lra import parse
from pipeline.errors import UserError
from pipeline.files import read_json, shown_path, write_json
from pipeline.training.lra_run import RECORD, LRACheckpoint, describe_data, open_data, read_lra_checkpoint
from pipeline.training.save_dir import whole_checkpoint
from user_dir.criterions import LRACriterion
from user_dir.models import LRAModel
from user_dir.tasks.lra_data import LRAData


@torch.inference_mode()
def count_correct(
    model: LRAModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Examples, correct answers, accuracy in percent and mean loss in bits of a split; all of it counts."""
    model = model.to(device).eval()
    task.load_dataset(split)
    batches = task.get_batch_iterator(
        task.dataset(split), max_sentences=batch_size, max_positions=model.max_positions()
    ).next_epoch_itr(shuffle=False)
    criterion = LRACriterion(task)
    loss, correct, count = 0.0, 0, 0
    for batch in batches:
        if device.type == "cuda":
            batch = move_to_cuda(batch, device)
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


def evaluate(
    checkpoint: LRACheckpoint, data: LRAData, split: str, device: torch.device | None = None
) -> dict[str, Any]:
    """The result as it is written to JSON, with all that a table must say about the run.

    `device`: where to compute; default: the first GPU if there is one.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint.check_data(data)
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint.path)], arg_overrides={"data": str(data.folder)}
    )
    beside = checkpoint.path.with_name(RECORD)
    run = read_json(beside) if beside.is_file() else {}
    return {
        "checkpoint": shown_path(checkpoint.path),
        "task": checkpoint.task,
        "preset": checkpoint.preset,
        "attention": checkpoint.attention,
        "options": checkpoint.options,
        "parameters": sum(p.numel() for p in models[0].parameters() if p.requires_grad),
        "steps": checkpoint.steps,
        "updates": checkpoint.updates,
        "seed": checkpoint.seed,
        "training_data": run.get("data"),
        "data": describe_data(data),
        "split": split,
        **count_correct(models[0], task, split, checkpoint.batch_size, device),
    }


def main() -> None:
    """Entry point."""
    options = parse(sys.argv[1:])
    data = open_data(options.data.absolute(), [options.split])
    checkpoint = read_lra_checkpoint(whole_checkpoint(options.checkpoint.absolute()))
    result = evaluate(checkpoint, data, options.split)
    out = options.out or checkpoint.path.with_suffix(f".{options.split}.json")
    write_json(out, result)
    origin = (result["training_data"] or {}).get("origin", "unknown")
    print(
        f"{result['task']} ({origin} data), {result['preset']}, {result['attention']}, "
        f"seed {result['seed']}, {result['updates']:,} updates: "
        f"{result['accuracy']:.2f} % of {result['examples']:,} right ({options.split})\n"
        f"  written to  {shown_path(out)}"
    )
