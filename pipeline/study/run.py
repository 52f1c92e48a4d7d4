"""What scripts/study.sh does with a study: list it, show it, or run its cells and write its page."""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.console import number_of, runs_failed
from pipeline.errors import UserError
from pipeline.files import RESULTS, made_folder, shown_path
from pipeline.outputs import LOCK, begins, check_output, check_output_folder, run_lock
from pipeline.study.best import keep_best_weights
from pipeline.study.cells import Cell, Plan, cells_of
from pipeline.study.declaration import RUNS, Study, find_study, read_study, study_names
from pipeline.study.estimate import Pace, in_words
from pipeline.study.expressions import COUNT
from pipeline.study.page import PAGE, check_one_setting, publish
from pipeline.study.plans import check_layer_plans
from pipeline.study.preparation import prepare_data
from pipeline.study.records import read_records
from pipeline.study.schedule import gpus, parallel_jobs, run_cells
from pipeline.study.start import check_starts
from pipeline.study.table import figure_of, unknown_figures
from pipeline.study.tuning import score_of, tuning_cells, with_chosen
from pipeline.study.worker import prune

SECONDS_TO_WRITE = 60  # to wait for another sweep that writes its table
SECONDS_TO_END = 5  # for the workers of a command that was killed: they have its locks until then


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


def is_done(cell: Cell) -> bool:
    """Whether it is finished."""
    return cell.record() is not None


def planned(study: Study, options: Namespace, flags: tuple[str, ...]) -> list[Cell]:
    """The cells that the command asks for."""
    out = (options.out or RUNS / study.name).absolute()
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    data = options.data.absolute() if options.data else None
    if data and not data.is_dir():
        raise UserError(f"--data {data}: there is no such folder")
    asked = {name: getattr(options, name) for name in study.axes if getattr(options, name)}
    cells = cells_of(Plan(study, out, data, flags, given_start(options)), asked, options.seeds or study.seeds)
    check_layer_plans(cells)
    return cells


def given_start(options: Namespace) -> Path | None:
    """The checkpoint of --start, or a whole one beside it; None without the option."""
    if getattr(options, "start", None) is None:
        return None
    from pipeline.training.save_dir import whole_checkpoint

    return whole_checkpoint(options.start.absolute())


def all_runs(cells: Sequence[Cell], with_unchosen: bool = False) -> list[Cell]:
    """The cells, those of tuning before them; those for which nothing is chosen yet only `with_unchosen`."""
    tried = runs_of_tuning(cells)
    if not tried:
        return list(cells)
    chosen = with_chosen(cells)
    ready = {cell.folder for cell in chosen}
    return [*tried, *chosen, *(cell for cell in cells if with_unchosen and cell.folder not in ready)]


def runs_of_tuning(cells: Sequence[Cell]) -> list[Cell]:
    """The runs in which the setting of the cells is chosen; none if the study tunes none."""
    if not cells or cells[0].study.tune is None:
        return []
    first = {tuple(cell.values.items()): cell for cell in reversed(cells)}
    return [one for cell in reversed(first.values()) for one in tuning_cells(cell)]


def show_list() -> None:
    """Every study: cells done of all, and the time of the rest."""
    for name in study_names():
        study, lines = read_study(find_study(name)), []
        for folder in (RESULTS / name, RUNS / name):
            cells = cells_of(Plan(study, folder, None, ()), {}, study.seeds)
            done = sum(cell.record_path.is_file() for cell in cells)
            runs = [*runs_of_tuning(cells), *cells]
            left = Pace(folder, name).left(runs) if 0 < done < len(cells) else None
            time = f", {in_words(left)} left" if left is not None else ""
            others = len(read_records(folder, name)) - done
            more = f" and {others} of other choices" if others > 0 else ""
            lines.append(f"{done} of {len(cells)}{more} in {shown_path(folder)}{time}")
        print(f"{name}: {'; '.join(lines)}")


def show_status(cells: Sequence[Cell]) -> None:
    """Every cell, and whether it is done, begun or missing."""
    runs = all_runs(cells, with_unchosen=True)
    for cell in runs:
        if is_done(cell):
            state = f"done: {describe(cell)}"
        else:
            state = "begun" if cell.folder.is_dir() else "missing"
        print(f"{cell.name}: {state}")
    left = Pace(cells[0].plan.out, cells[0].study.name).left(runs)
    print(f"time left: {in_words(left) if left is not None else 'unknown until a cell is finished'}")


def show_commands(cells: Sequence[Cell]) -> None:
    """The fairseq-train command of every cell that is not finished."""
    on_gpu = bool(gpus())
    for cell in all_runs(cells):
        state = "done before" if is_done(cell) else shlex.join(["fairseq-train", *cell.arguments(on_gpu)])
        print(f"# {cell.name}\n{state}")


def run_study(study: Study, cells: Sequence[Cell], jobs: int | None, source: Path | None) -> None:
    """Run what is missing, tuning first, and write the page; raw data are prepared from `source`."""
    places, out = parallel_jobs(jobs), cells[0].plan.out
    check_out(study, out)
    with locked(cells) as held:
        check_one_setting([*read_records(out, study.name), {"flags": cells[0].plan.flags}], out)
        prepare_data(study, cells, source)
        runs = all_runs(cells)
        check_starts(cell for cell in runs if not is_done(cell))
        failures: list[str] = []
        if study.tune:
            tried = [cell for cell in runs if cell.tuning is not None]
            failures += run_missing(f"{study.name}, choosing {study.tune.axis}", tried, places, held)
            cells = with_chosen(cells)
        failures += run_missing(study.name, cells, places, held)
        if study.best:
            keep_best_weights(study.best, cells)
        with run_lock(out, SECONDS_TO_WRITE, "--out"):
            written = publish(study, out)
        if written:
            print(f"\n{written[0].read_text(encoding='utf-8')}")
            print(f"written: {', '.join(map(shown_path, written))}")
        if failures:
            raise runs_failed(failures)


def check_out(study: Study, out: Path) -> None:
    """UserError unless results can go into `out`, where a page or pictures must be those of the study."""
    check_output_folder(out, "--out")
    if not read_records(out, study.name):
        ours, page = begins(f"# {study.about}\n"), out / PAGE
        for path in [page] if page.is_file() else [page, *out.glob("*.png")]:
            check_output(path, ours, makes_folder=True)


@contextmanager
def locked(cells: Sequence[Cell]) -> Iterator[list[int]]:
    """Keep other commands out of the folders of the cells' choices of the first axis; gives the descriptors.

    Those of other choices may run at the same time, as the jobs of an array do.
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
    """Remove the lock, while it is held, of a folder in which there is nothing else."""
    if [path.name for path in folder.iterdir()] == [LOCK]:
        (folder / LOCK).unlink()


def run_missing(title: str, cells: Sequence[Cell], jobs: int, held: Sequence[int]) -> list[str]:
    """Run the cells without a record; returns a line for each that has failed."""
    missing = []
    for cell in cells:
        if is_done(cell):
            prune(cell)  # a kill may have come between its record and this
        else:
            missing.append(cell)
    where = shown_path(cells[0].plan.out) if cells else ""
    done = len(cells) - len(missing)
    print(f"{title}: {number_of(len(cells), 'runs')}, {done} done before; results: {where}", flush=True)
    said: set[str] = set()

    def report(cell: Cell) -> str:
        for sentence in unknown_figures(cell.study.tables, cell.record()) if cell.tuning is None else ():
            if sentence not in said:
                print(f"note: {sentence}", flush=True)
            said.add(sentence)
        return describe(cell)

    return run_cells(missing, jobs, held, report)
