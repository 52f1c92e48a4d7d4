"""The command `finetune`: the study glue from one encoder, over learning rates and seeds."""

from argparse import Namespace
from collections.abc import Sequence

from conventions import PREPARED
from lab.console import number_of
from lab.errors import UserError
from lab.files import ROOT
from lab.glue_tasks import TASKS, glue_task
from lab.run.checkpoint import read_encoder, short_name, whole_checkpoint
from lab.run.kinds import KINDS, cut_sentences
from lab.study.cells import Cell, Plan, cells_of
from lab.study.cli import run_study, show_commands
from lab.study.declaration import read_study

STUDY = "glue"


def find_tasks(options: Namespace) -> list[str]:
    """The tasks asked for; "all" means the prepared ones."""
    folder = (options.data or ROOT / "data" / "glue").absolute()
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; prepare it with data-prep/glue.sh, or name one with --data")
    if options.task != "all":
        return [glue_task(name).name for name in options.task.split(",")]
    names = [name for name in TASKS if (folder / name / PREPARED).is_file()]
    if not names:
        raise UserError(f"{folder} holds no prepared task; data-prep/glue.sh makes them")
    return names


def cells_asked(options: Namespace) -> list[Cell]:
    """The cells of the command, task by task."""
    study, start = read_study(STUDY), whole_checkpoint(options.checkpoint.absolute())
    out = (options.out or start.parent / "glue" / short_name(start)).absolute()
    flags = ("--max-update", str(options.max_update)) if options.max_update else ()
    flags += options.flags
    data = options.data.absolute() if options.data else None
    asked = {"task": find_tasks(options), "lr": [str(rate) for rate in options.learning_rates or ()]}
    cells = cells_of(Plan(study, out, data, flags, start), asked, options.seeds or study.seeds)
    order = asked["task"]
    return sorted(cells, key=lambda cell: order.index(cell.values["task"]))


def check_tasks(cells: Sequence[Cell]) -> None:
    """UserError if a task is not prepared or does not fit the encoder; print what will be cut."""
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


def main(options: Namespace) -> None:
    """Fine-tune."""
    cells = cells_asked(options)
    check_tasks(cells)
    if options.dry_run:
        show_commands(cells)
    else:
        run_study(cells, options.jobs)
