"""Accuracy of a model of Long Range Arena (the command behind evaluate_lra.sh)."""

import sys
from typing import Any

import torch
from fairseq import checkpoint_utils

from pipeline.commands.evaluation.evaluate_lra import parse
from pipeline.console import number_of
from pipeline.evaluation.accuracy import count_correct
from pipeline.files import check_writable, read_json, shown_path, write_json
from pipeline.training.lra_run import RECORD, LRACheckpoint, describe_data, open_data, read_lra_checkpoint
from pipeline.training.save_dir import whole_checkpoint
from user_dir.tasks.lra_data import LRAData


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
    out = options.out or checkpoint.path.with_suffix(f".{options.split}.json")
    check_writable(out)
    result = evaluate(checkpoint, data, options.split)
    write_json(out, result)
    origin = (result["training_data"] or {}).get("origin", "unknown")
    print(
        f"{result['task']} ({origin} data), {result['preset']}, {result['attention']}, "
        f"seed {result['seed']}, {number_of(result['updates'], 'updates')}: "
        f"{result['accuracy']:.2f} % of {result['examples']:,} right ({options.split})\n"
        f"  written to  {shown_path(out)}"
    )
