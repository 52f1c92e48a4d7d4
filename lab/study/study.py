"""An experiment that a YAML declares: its cells trained and measured once each, tables, verdicts, plots.

STUDY is a name of configs/studies or a YAML of your own (docs/studies.md). Each cell leaves a record
seedN.json below --out, and the command writes README.md there: tables, verdicts on the papers' claims and
pictures. Running it again skips what is finished and resumes the rest, even after a kill.

  scripts/study.sh --list                          every study: cells done, and the time the rest takes
  scripts/study.sh copy --help                     the axes of one
  scripts/study.sh copy --status                   every cell of one
  scripts/study.sh copy --preset tiny --seeds 3    choices of its axes
  scripts/study.sh copy -- --max-update 500        flags of fairseq-train, for every cell
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lab.console import Parser, count, names, split_flags
from lab.errors import UserError
from lab.files import shown_path
from lab.study.notation import nearest

if TYPE_CHECKING:
    from lab.study.schema import Study

COMMAND = "scripts/study.sh"


def parser_of(study: "Study | None") -> Parser:
    """The command line; with a study its axes are options."""
    text = __doc__ if study is None else f"{study.about}\n\n{shown_path(study.path)}"
    parser = Parser(COMMAND, text, usage=f"{COMMAND} STUDY [options] [-- fairseq-train flags ...]")
    parser.add_argument("study", metavar="STUDY", nargs="?", help="a name of configs/studies, or a YAML")
    parser.add_argument("--list", action="store_true", help="show every study: cells done, time left")
    parser.add_argument("--status", action="store_true", help="show every cell, and stop")
    parser.add_argument("--dry-run", action="store_true", help="print the fairseq-train commands, and stop")
    parser.add_argument("--seeds", type=count, metavar="N", help="seeds, counted up from that of the YAML")
    parser.add_argument(
        "--jobs", type=count, metavar="N", help="cells side by side (default: one per GPU, or 1)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="runs and results (default: runs/studies/STUDY)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="prepared data (default: those of the YAMLs)"
    )
    parser.add_argument(
        "--source", type=Path, metavar="PATH", help="raw data to prepare from, in place of a download"
    )
    if study is None or study.start:
        parser.add_argument(
            "--start",
            type=Path,
            metavar="CHECKPOINT",
            help="from which a study that fine-tunes starts",
        )
    for name, axis in study.axes.items() if study else ():
        known = ", ".join(axis.usual)
        parser.add_argument(f"--{name}", type=names, metavar="NAMES", help=f"with commas (default: {known})")
    return parser


def parse(words: Sequence[str]) -> "tuple[Namespace, Study | None, tuple[str, ...]]":
    """The options, the study, and the flags after `--`."""
    own, flags = split_flags(words)
    study = None
    if own and not own[0].startswith("-"):
        from lab.study.declaration import read_study

        study = read_study(own[0])
    parser = parser_of(study)
    options, unknown = parser.parse_known_args(own)
    if unknown:
        known = [word for action in parser._actions for word in action.option_strings]
        hint = nearest(unknown[0], known)
        raise UserError(f"there is no option {unknown[0]}{hint}; flags of fairseq-train come after --")
    if options.study and study is None:
        raise UserError(f"name the study first: {COMMAND} {options.study} ...")
    return options, study, flags


def main() -> None:
    """Run, show or list studies."""
    options, study, flags = parse(sys.argv[1:])
    from lab.study import run

    if options.list:
        run.show_list()
        return
    if study is None:
        raise UserError(f"name a study, or a YAML of your own; {COMMAND} --list shows the studies")
    cells = run.planned(study, options, flags)
    if options.status:
        run.show_status(cells)
    elif options.dry_run:
        run.show_commands(cells)
    else:
        run.run_study(cells, options.jobs, options.source)
