"""An experiment that a YAML declares: its cells trained and measured once each, tables, verdicts, plots.

STUDY is a name in configs/studies or your own YAML (docs/studies.md). Each cell writes a record
seedN.json below --out, and the command writes README.md there: tables, verdicts on the papers' claims and
pictures. Run it again to resume, even after a kill: it skips finished cells.

  scripts/study.sh --list                          every study: cells done, and the time the rest takes
  scripts/study.sh copy --help                     the axes of one
  scripts/study.sh copy --status                   every cell of one
  scripts/study.sh copy --preset tiny --seeds 3    choices of its axes
  scripts/study.sh copy -- --max-update 500        flags of fairseq-train, for every cell
"""

import shlex
import statistics
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from conventions import LOCK
from lab.console import Parser, count, names, number_of, split_flags
from lab.errors import UserError, suggestion
from lab.files import MARK, RESULTS, check_output_folder, fingerprint, made_folder, run_lock, shown_path
from lab.run.log import run_figures
from lab.run.process import import_quickly
from lab.study.cells import (
    Cell,
    Plan,
    cells_of,
    check_layer_plans,
    check_trusted,
    known_values,
    prune,
)
from lab.study.declaration import our_studies, read_study
from lab.study.groups import group_of
from lab.study.page import PAGE, check_replaceable, publish
from lab.study.pictures import picture_paths
from lab.study.preparation import prepare_data
from lab.study.records import read_records
from lab.study.schedule import gpus, parallel_jobs, run_cells
from lab.study.schema import COUNT, GIVEN, RUNS, STUDIES, Axis, Record, Study
from lab.study.shown import check_future
from lab.study.table import figure_of
from lab.study.tuning import all_runs, refusal, runs_of_tuning, score_of, with_chosen, without_score
from lab.study.weights import keep_best_weights

COMMAND = "scripts/study.sh"
SECONDS_TO_END = 5  # for the workers of a killed command, which keep its locks until they end


def parser_of(study: Study | None) -> Parser:
    """The command line; with a study its axes are options."""
    text = __doc__ if study is None else f"{study.about}\n\n{shown_path(study.path)}"
    parser = Parser(COMMAND, text, usage=f"{COMMAND} STUDY [options] [-- fairseq-train flags ...]")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="a name in configs/studies, or a YAML")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--list", action="store_true", help="show every study: cells done, time left")
    instead.add_argument("--status", action="store_true", help="show every cell, and stop")
    instead.add_argument("--dry-run", action="store_true", help="print the fairseq-train commands, and stop")
    parser.add_argument(
        "--seeds", type=count, metavar="N", help="number of seeds, counted up from the YAML's"
    )
    parser.add_argument(
        "--jobs",
        type=count,
        metavar="N",
        help="cells in parallel, at most one per GPU (default: one per GPU, or 1)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of runs and results (default: runs/studies/STUDY)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="prepared data (default: named by the YAMLs)"
    )
    parser.add_argument(
        "--source", type=Path, metavar="PATH", help="raw data to prepare from, instead of a download"
    )
    if study is None or study.start:
        parser.add_argument(
            "--start",
            type=Path,
            metavar="CHECKPOINT",
            help="the checkpoint that a fine-tuning study starts from",
        )
    for name, axis in study.axes.items() if study else ():
        known = f"default: {', '.join(axis.usual)}"
        if others := other_values(study, axis):
            known += f"; also {', '.join(others)}"
        parser.add_argument(
            f"--{name}", type=names, metavar="NAMES", help=f"choices, separated by commas ({known})"
        )
    return parser


def other_values(study: Study, axis: Axis) -> list[str]:
    """The choices of an axis that are known, and run only if the command names them."""
    known = known_values(study, axis.name) if axis.placeholder and not axis.closed else axis.choices
    return [name for name in known if name not in axis.usual]


def parse(words: Sequence[str]) -> Namespace:
    """The options, the `study` as it is read, and the `flags` after `--`."""
    own, flags = split_flags(words)
    study = None
    if own and not own[0].startswith("-"):
        study = read_study(own[0])
    parser = parser_of(study)
    options, unknown = parser.parse_known_args(own)
    if unknown:
        known = [word for action in parser._actions for word in action.option_strings]
        rule = f"; flags of fairseq-train come after --, as in `-- {shlex.join(unknown)}`"
        hint = suggestion(unknown[0].partition("=")[0], known, closeness=0.8) or rule
        raise UserError(f"there is no option {unknown[0]}{hint}")
    if options.list and (others := [word for word in (*own, *flags) if word != "--list"]):
        raise UserError(
            f"--list shows every study; leave {shlex.join(others)} out, or show the cells of one study with "
            "--status"
        )
    if options.study and study is None:
        raise UserError(f"name the study first: {COMMAND} {options.study} ...")
    return Namespace(**{**vars(options), "study": study, "flags": flags})


def main(options: Namespace) -> None:
    """Run, show or list studies."""
    study = options.study
    if options.list:
        show_list()
        return
    if study is None:
        raise UserError(f"name a study, or a YAML of your own; {COMMAND} --list shows the studies")
    cells = asked_cells(study, options, options.flags)
    if options.status:
        show_status(cells)
    elif options.dry_run:
        show_commands(cells)
    else:
        run_study(cells, options.jobs, options.source)


def describe(cell: Cell) -> str:
    """The result of a finished cell in a few words: the first columns of the first table that has any."""
    record = cell.record()
    if record is None:
        return "no record"
    if cell.tuning is not None:
        score = score_of(cell)
        return "no score" if score is None else f"{cell.study.tune.by} {score:.4g}"
    columns = [column for column in cell.study.tables[0].columns if column.form != COUNT][:2]
    return ", ".join(f"{column.title} {figure_of(column, [record])}" for column in columns)


def asked_cells(study: Study, options: Namespace, flags: tuple[str, ...]) -> list[Cell]:
    """The cells that the command asks for."""
    out = (options.out or RUNS / study.name).absolute()
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    data = options.data.absolute() if options.data else None
    if data and not data.is_dir():
        raise UserError(f"--data {data} is not a folder")
    start = getattr(options, "start", None)
    if start:
        start = import_quickly("lab.run.checkpoint").whole_checkpoint(start.absolute())
    elif study.start == GIVEN:
        raise UserError("name the checkpoint to start from with --start")
    asked = {name: getattr(options, name) for name in study.axes if getattr(options, name)}
    cells = cells_of(Plan(study, out, data, flags, start), asked, options.seeds or study.seeds)
    if start and study.start != GIVEN:
        check_whose(study, cells)
    check_trusted(cells)
    check_layer_plans(cells)
    return cells


def time_left(cells: Sequence[Cell], folder: Path | None = None) -> float | None:
    """The seconds that the cells without a record take, by begun runs and the records of the study.

    Those are in `folder`, by default the cells' own. The speed is that of the same choices if any ran, else
    of all. The updates may follow from data that are not prepared here: then those of the same choices count.
    None if any of them is unknown.
    """
    records = read_records(folder or cells[0].plan.out, cells[0].study)
    ended = [(_choices(record), record["training"]) for record in records]
    begun = {cell.folder: figures for cell in cells if (figures := figures_of_begun(cell))}
    running = [(cell.values, begun[cell.folder]) for cell in cells if cell.folder in begun]
    timed = [(values, one) for values, one in (*ended, *running) if one["seconds"] and one["updates"]]
    total = 0.0
    for cell in cells:
        if cell.is_recorded:
            continue
        alike = [one for values, one in timed if values == cell.values]
        made = [one["updates"] for values, one in ended if values == cell.values]
        updates = cell.updates() or (statistics.median(made) if made else 0)
        ran = alike or [one for _, one in timed]
        if not (ran and updates):
            return None
        rest = updates - begun.get(cell.folder, {}).get("updates", 0)
        total += max(0, rest) * statistics.median(one["seconds"] / one["updates"] for one in ran)
    return total


def time_in_words(cells: Sequence[Cell]) -> str:
    """The time left, if need be by the committed records of the study, which it names; empty if unknown."""
    study, ours = cells[0].study, RESULTS / cells[0].study.name
    if (left := time_left(cells)) is not None:
        return in_words(left)
    left = time_left(cells, ours) if study.path.parent == STUDIES else None
    return "" if left is None else f"{in_words(left)} by the records of {shown_path(ours)}"


def figures_of_begun(cell: Cell) -> dict[str, Any] | None:
    """Figures from the log of a run without a record; None if there is no log."""
    log = cell.run.log
    return run_figures(log) if not cell.is_recorded and log.is_file() else None


def _choices(record: Record) -> dict[str, str]:
    return {name: str(value) for name, value in record["cell"].items() if name != "seed"}


def in_words(seconds: float) -> str:
    """A duration in minutes or hours."""
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{seconds / 3600:.1f} h"


def show_list() -> None:
    """Every study: cells done of all, and the time of the rest."""
    for study in our_studies():
        lines = []
        for folder in (RESULTS / study.name, RUNS / study.name):
            cells = cells_of(Plan(study, folder), {}, study.seeds)
            done = sum(cell.is_recorded for cell in cells)
            runs = [*runs_of_tuning(cells), *cells]
            left = time_in_words(runs) if done < len(cells) else ""
            time = f", time left: {left}" if left else ""
            others = len(read_records(folder, study)) - done
            more = f" and {others} of other choices" if others > 0 else ""
            lines.append(f"{done} of {len(cells)}{more} in {shown_path(folder)}{time}")
        print(f"{study.name}: {'; '.join(lines)}")


def show_status(cells: Sequence[Cell]) -> None:
    """Every cell, and whether it is done, begun or missing."""
    runs = all_runs(cells, with_unchosen=True)
    for cell in runs:
        print(f"{cell.name}: {state_of(cell)}")
    left = time_in_words(runs) or "unknown until a run has begun and the data are prepared"
    print(f"time left: {left}")


def state_of(cell: Cell) -> str:
    """Whether a cell is done, begun or missing, in a few words."""
    if cell.is_unchosen and cell.is_recorded:
        return f"done; its {cell.tuned_axis} may change when the missing runs of tuning are done"
    if why := refusal(cell):
        return why
    if cell.record():
        return f"done: {describe(cell)}"
    if figures := figures_of_begun(cell):
        last = cell.updates()
        return f"begun, at update {figures['updates']:,}" + (f" of {last:,}" if last else "")
    return "begun" if cell.folder.is_dir() else "missing"


def check_whose(study: Study, cells: Sequence[Cell]) -> None:
    """UserError unless all cells start from one run of the other study, since --start names one model."""
    for axis in read_study(study.start).axes:
        if len({cell.values[axis] for cell in cells}) > 1:
            raise UserError(f"--start names one checkpoint; say whose it is with --{axis}")


def show_commands(cells: Sequence[Cell]) -> None:
    """Print the fairseq-train command of every unfinished cell, after the same checks as a run.

    Raises UserError for an invalid --out or setting.
    """
    check_out(cells)
    check_arguments = import_quickly("lab.study.worker").check_arguments
    on_gpu, checked = bool(gpus()), set()
    for cell in all_runs(cells):
        print(f"# {cell.name}")
        if why := refusal(cell):
            print(f"# {why}")
            continue
        if cell.record():
            print("done before")
            continue
        arguments = cell.arguments(on_gpu)
        if (alike := setting_words(cell)) not in checked:
            checked.add(alike)
            check_arguments(cell, arguments)
        print(shlex.join(["fairseq-train", *arguments]))


def setting_words(cell: Cell) -> str:
    """Identifies a cell's settings, apart from its seed."""
    return fingerprint([cell.experiment.settings, replace(cell, seed=0).own_flags()])


def run_study(cells: Sequence[Cell], jobs: int | None = None, source: Path | None = None) -> None:
    """Run the missing cells, tuning first, and write the page; `source` has the raw data."""
    places, study, out = parallel_jobs(jobs), cells[0].study, cells[0].plan.out
    check_out(cells)
    with locked(cells) as held:
        check_future(cells)
        prepare_data(cells, source)
        check_future(cells)
        check_starts(cell for cell in all_runs(cells) if not (refusal(cell) or cell.record()))
        failures: list[str] = []
        while not failures:
            tried = runs_of_tuning(cells)
            if all(cell.record() for cell in tried):
                break
            failures += run_missing(f"{study.name}, choosing {study.tune.axis}", tried, places, held)
        failures += without_score(cells)
        cells = with_chosen(cells)
        failures += run_missing(study.name, cells, places, held)
        if study.best:
            keep_best_weights(study.best, cells)
        written = publish(study, out)
        if (page := out / PAGE).is_file():
            print(f"\n{page.read_text(encoding='utf-8').removeprefix(MARK).strip()}\n")
            shown = ", ".join(map(shown_path, written))
            print(f"written: {shown}" if written else f"up to date: {shown_path(page)}")
        if failures:
            raise UserError(f"{number_of(len(failures), 'runs')} failed; the first: {failures[0]}")


def check_out(cells: Sequence[Cell]) -> None:
    """UserError unless results can go into --out, where page and pictures must be generated ones."""
    study, out = cells[0].study, cells[0].plan.out
    check_output_folder(out, "--out")
    groups = dict.fromkeys(group_of(study, cell.values) for cell in cells)
    check_replaceable(study, [out / PAGE, *picture_paths(study, groups, out)])


def check_starts(cells: Iterable[Cell]) -> None:
    """UserError for a cell whose checkpoint is missing, or that of a run which has not finished."""
    for cell in cells:
        path, run = cell.start, cell.started_from
        if run is None:
            if path is not None and not path.is_file():
                raise UserError(f"no checkpoint {shown_path(path)}; name another with --start")
            continue
        choices = " ".join(f"--{axis} {name}" for axis, name in run.values.items())
        first = f"run scripts/study.sh {run.study.name} {choices} --seeds {run.seed_number} first"
        if not path.is_file():
            wrong = f"no checkpoint {shown_path(path)}"
            if run.record():  # whose weights were removed
                record = shown_path(run.record_path)
                wrong, first = (
                    f"{wrong}, though {record} says that it was trained",
                    f"move that away and {first}",
                )
            raise UserError(f"{wrong}; {first}, or name another with --start")
        if run.record() is None:  # which also refuses a run with other settings
            raise UserError(f"the training in {shown_path(run.folder)} has not finished; {first}")


@contextmanager
def locked(cells: Sequence[Cell]) -> Iterator[list[int]]:
    """Keep other commands out of the folders of the cells' choices of the first axis; gives the descriptors.

    Other choices may run at the same time, as in the jobs of an array.
    """
    folders = {cell.plan.out / next(iter(cell.values.values())) for cell in cells}
    with ExitStack() as stack:
        held = []
        for folder in sorted(folders):
            stack.enter_context(made_folder(folder))
            held.append(stack.enter_context(run_lock(folder, SECONDS_TO_END, "--out")))
            stack.callback(remove_lone_lock, folder)
        yield held


def remove_lone_lock(folder: Path) -> None:
    """Remove the lock, while it is held, of an otherwise empty folder."""
    if [path.name for path in folder.iterdir()] == [LOCK]:
        (folder / LOCK).unlink()


def run_missing(title: str, cells: Sequence[Cell], jobs: int, held: Sequence[int]) -> list[str]:
    """Run the cells without a record; returns a line for each that has failed."""
    missing, refused = [], []
    for cell in cells:
        if why := refusal(cell):
            refused.append(f"{cell.name}: {why}")
        elif cell.record():
            prune(cell)  # a kill may have come between writing the record and this line
        else:
            missing.append(cell)
    where = shown_path(cells[0].plan.out) if cells else ""
    done = len(cells) - len(missing) - len(refused)
    print(f"{title}: {number_of(len(cells), 'runs')}, {done} done before; results: {where}", flush=True)
    return [*refused, *run_cells(missing, jobs, held, describe)]
