"""From nothing to a table: set-up, a small corpus, three language models trained and compared.

Makes .venv (PYTHON= and TORCH_SPEC= choose interpreter and torch), prepares the English text that comes
with Python, runs the study "quickstart", which trains transnormer_t1, transnormer_t2 and fairseq's
transformer_lm with equal budgets and evaluates each, and lets the first model continue three prompts. On two
cores or more the models train side by side. Run the same command again to resume after an interruption; once
everything is done it prints the table again.
"""

import re
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lab.console import Parser, count
from lab.data.prepared import open_prepared
from lab.files import ROOT, is_run, run_lock, write_atomically
from lab.provenance import memory_available, usable_cores
from lab.run.folder import move_aside
from lab.run.process import run_fairseq
from lab.run.recipe import shortened
from lab.store import STORE
from lab.study.cells import STUDY_COMMAND, Cell, Plan, cells_of
from lab.study.cli import run_study
from lab.study.declaration import read_study
from lab.study.page import PAGE
from lab.study.schedule import gpus

STUDY = "quickstart"
BYTES = 10**9  # of a training, with its libraries
PROMPTS = ROOT / "configs" / "quickstart" / "prompts.txt"
# Sampling, since a greedy continuation by a model this small repeats itself.
GENERATION = ["--sampling", "--sampling-topp", "0.8", "--temperature", "0.7", "--beam", "1"]
GENERATION += ["--max-len-a", "1", "--max-len-b", "40", "--seed", "1"]


def parse(words: Sequence[str]) -> Namespace:
    parser = Parser("scripts/quickstart.sh", __doc__)
    parser.add_argument(
        "--updates",
        type=count,
        metavar="N",
        help="train each model for N updates instead of those of configs/quickstart/base.yaml",
    )
    parser.add_argument(
        "--out",
        "--runs",
        dest="runs",
        type=Path,
        metavar="DIR",
        help="folder of runs and results (default: runs/studies/quickstart in the project, "
        "runs/studies/quickstart-N with --updates N)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="start over; earlier runs of this command move to DIR/earlier-N, nothing is deleted",
    )
    options = parser.parse_args(words)
    if options.runs is None:
        suffix = f"-{options.updates}" if options.updates else ""
        options.runs = ROOT / "runs" / "studies" / f"{STUDY}{suffix}"
    options.runs = options.runs.absolute()
    return options


def asked_cells(options: Namespace) -> list[Cell]:
    """The models to train; with another number of updates the warm-up is shortened in proportion."""
    study = read_study(STUDY)
    plan = Plan(study, options.runs)
    if options.updates:
        [first, *_] = cells_of(plan, {}, study.seeds)
        plan = Plan(study, options.runs, flags=tuple(shortened(first.experiment, (), options.updates)))
    return cells_of(plan, {}, study.seeds)


def start_over(cells: Sequence[Cell]) -> None:
    """Move the runs of this command, their records, page and curves aside; other files stay."""
    out = cells[0].plan.out
    begun = [cell for cell in cells if is_run(cell.folder, STUDY_COMMAND) or cell.record_path.is_file()]
    folders = [cell.folder.parent for cell in begun]
    with ExitStack() as locks:
        for folder in folders:
            locks.enter_context(run_lock(folder, option="--out"))
        if left := [*folders, *out.glob(STORE)]:
            move_aside(out, [*left, *out.glob(PAGE), *out.glob("curves.png")])


def continuations(cell: Cell) -> list[str]:
    """The model's continuations of the prompts, from `fairseq-interactive`, generated once.

    There are none beside a record whose checkpoint is not kept.
    """
    file = cell.folder / "continuations.txt"
    if file.exists():
        return file.read_text(encoding="utf-8").splitlines()
    if not cell.run.is_begun:
        return []
    data = open_prepared(cell.data_folder(), ("valid",))
    arguments = [str(data.folder), "--user-dir", str(ROOT / "user_dir"), "--task", "language_modeling"]
    arguments += [
        *GENERATION,
        "--path",
        str(cell.run.checkpoint(cell.study.checkpoint)),
        "--input",
        str(PROMPTS),
    ]
    if model := data.sentencepiece_model:
        arguments += ["--bpe", "sentencepiece", "--sentencepiece-model", str(model)]
    if not gpus():
        arguments.append("--cpu")
    lines: list[str] = []
    run_fairseq("interactive", arguments, cell.folder / "generate.log", lines.append)
    found = [re.match(r"D-\d+\t[^\t]*\t(.*)", line) for line in lines]
    texts = [match[1] for match in found if match]
    write_atomically(file, "".join(f"{text}\n" for text in texts).encode())
    return texts


def jobs(cells: Sequence[Cell]) -> int | None:
    """How many models train side by side: all, if cores and memory suffice; on GPUs one each."""
    if gpus():
        return None
    return len(cells) if usable_cores() > 1 and memory_available() > len(cells) * BYTES else 1


def main(options: Namespace) -> None:
    """Run the study, and show where everything is and what the first model writes."""
    start = time.monotonic()

    cells = asked_cells(options)
    if options.fresh:
        start_over(cells)
    run_study(cells, jobs(cells))
    if texts := continuations(cells[0]):
        print(f"\n{cells[0].choices[0].label} continues three prompts:")
        for text in texts:
            print(f"  {text}")
    print(f"\nLogs, checkpoints and results: {options.runs}")
    tensorboard = [str(Path(sys.prefix, "bin", "tensorboard")), "--logdir", str(options.runs)]
    print(f"Curves: {shlex.join(tensorboard)}")
    print(f"Done in {time.monotonic() - start:.0f} s.")
