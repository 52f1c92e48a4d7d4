"""Fine-tune an encoder on GLUE: every task, learning rate and seed, and a table next to the papers'.

The best learning rate of each task is the one with the best mean over the seeds on the dev set, as in the
papers. This is the study configs/studies/glue.yaml from the checkpoint that is named: --out gets a record
for each run and README.md with the table; the weights of each task's best run are kept. After an
interruption, even a kill, run the same command again: finished runs are skipped, the others resume from
their last epoch.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from conventions import PREPARED
from lab.console import Parser, count, number_of, positive, split_flags
from lab.errors import UserError
from lab.files import ROOT
from lab.glue_tasks import TASKS, glue_task

if TYPE_CHECKING:
    from lab.study.cells import Cell

STUDY = "glue"


def parse(words: Sequence[str]) -> argparse.Namespace:
    words, flags = split_flags(words)
    usage = "scripts/finetune_glue.sh CHECKPOINT [options] [-- fairseq-train flags ...]"
    parser = Parser("scripts/finetune_glue.sh", __doc__, usage=usage)
    parser.add_argument(
        "checkpoint",
        type=Path,
        metavar="CHECKPOINT",
        help="of scripts/pretrain_roberta.sh, or of fairseq's RoBERTa",
    )
    parser.add_argument(
        "--task",
        default="all",
        metavar="TASKS",
        help=f"{', '.join(TASKS)}, several with commas, or all that are prepared (default: all)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="written by data-prep/glue.sh with the encoder's tokeniser (default: data/glue)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where runs and results go (default: glue/<checkpoint> beside the checkpoint)",
    )
    parser.add_argument(
        "--lr",
        "--learning-rates",
        dest="learning_rates",
        type=several(positive, "numbers"),
        metavar="A,B,...",
        help="learning rates instead of those of configs/studies/glue.yaml",
    )
    parser.add_argument(
        "--seeds",
        type=several(count, "whole numbers"),
        metavar="A,B,...",
        help="seeds instead of those of configs/studies/glue.yaml",
    )
    parser.add_argument(
        "--max-update",
        type=count,
        metavar="N",
        help="stop each run after N updates instead of the epochs of configs/glue/finetune.yaml",
    )
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="runs in parallel (default: one per GPU; 1 without a GPU)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the fairseq-train commands, and stop")
    return parser.parse_args(words, argparse.Namespace(flags=flags))


def several(kind: Callable[[str], float], what: str) -> Callable[[str], list[float]]:
    """A reader of comma-separated numbers above 0, of which `kind` reads one and `what` is the name."""

    def read(text: str) -> list[float]:
        try:
            return list(dict.fromkeys(kind(word) for word in text.split(",")))
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not one or several {what} above 0, with commas between"
            ) from None

    return read


def find_tasks(options: argparse.Namespace) -> list[str]:
    """The tasks asked for; with "all" those that are prepared."""
    folder = (options.data or ROOT / "data" / "glue").absolute()
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; prepare it with data-prep/glue.sh, or name one with --data")
    if options.task != "all":
        return [glue_task(name).name for name in options.task.split(",")]
    names = [name for name in TASKS if (folder / name / PREPARED).is_file()]
    if not names:
        raise UserError(f"{folder} holds no prepared task; data-prep/glue.sh makes them")
    return names


def cells_asked(options: argparse.Namespace) -> "list[Cell]":
    """The cells of the command, a task after the other."""
    from lab.run.folder import whole_checkpoint
    from lab.study.cells import Plan, cells_of
    from lab.study.declaration import read_study

    study, start = read_study(STUDY), whole_checkpoint(options.checkpoint.absolute())
    out = (options.out or start.parent / "glue" / start.stem).absolute()
    flags = ("--max-update", str(options.max_update)) if options.max_update else ()
    flags += options.flags
    data = options.data.absolute() if options.data else None
    asked = {"task": find_tasks(options), "lr": [str(rate) for rate in options.learning_rates or ()]}
    cells = cells_of(Plan(study, out, data, flags, start), asked, study.seeds)
    if options.seeds:
        cells = [replace(cell, seed=seed) for cell in cells if cell.seed == 1 for seed in options.seeds]
    order = asked["task"]
    return sorted(cells, key=lambda cell: order.index(cell.values["task"]))


def check_tasks(cells: "Sequence[Cell]") -> None:
    """UserError for a task that is not prepared or does not fit the encoder; says how much will be cut."""
    from lab.run.checkpoint import read_encoder
    from lab.run.kinds import KINDS, cut_sentences

    start, kind = cells[0].plan.start, KINDS["sentence_prediction"]
    longest = read_encoder(start).max_positions
    for folder in dict.fromkeys(cell.data_folder() for cell in cells):
        data = kind.open_data(folder, ("train", "valid"))
        kind.check_start(start, data)
        if cut := cut_sentences(data, longest):
            print(
                f"{data.task.name}: {number_of(cut, 'examples')} with more tokens than the {longest} "
                "positions of the encoder will be cut"
            )


def main() -> None:
    """Fine-tune."""
    options = parse(sys.argv[1:])
    from lab.study.cli import run_study, show_commands

    cells = cells_asked(options)
    check_tasks(cells)
    if options.dry_run:
        show_commands(cells)
    else:
        run_study(cells, options.jobs)
