"""Resumable driver shared by the cost benchmarks."""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.worker import Case, run_case
from lab.console import Parser, add_device, names, positive
from lab.errors import UserError
from lab.files import (
    BENCHMARKS,
    RESULTS,
    check_output,
    json_with,
    marked,
    read_json,
    shown_path,
    write_atomically,
    write_json,
)
from lab.provenance import check_same_machine, commit, environment, memory_available

Settings = dict[str, Any]
Results = dict[str, Any]
LEAST_MEMORY_GIB = 1
"""With less, PyTorch and fairseq do not start in a process."""


@dataclass(frozen=True)
class CostBenchmark:
    """A benchmark that measures each case in its own process.

    Args:
        file: the script, whose `MEASURES` the worker reads.
        text: what --help says.
        looks: the measurable items by name, each with a `label`.
        time_limit: the default, in seconds.
        settings_for: called with device, --quick and the chosen values; its result decides the results
            besides device, threads and architectures, and runs with equal settings may be joined.
        markdown, plot: make the report, the second a picture, if there is one.
        default: names of those that run; by default all.
        add_options: adds the benchmark's own.
        complaint: the error of conflicting options, or nothing.
        chooses: options whose values, where given, go to `settings_for`.
        cases: all that are measured, by the settings.
        question: further input of the process of a case, besides case and settings.
        hopeless: tells cases that are left out by the results so far and the time limit.
        variant: ends the name of the results of some options, which cannot join the others.
    """

    file: str
    text: str
    looks: Mapping[str, Any]
    time_limit: float
    settings_for: Callable[..., Settings]
    markdown: Callable[[Results], str]
    plot: Callable[[Results, Path], None] | None = None
    default: Sequence[str] = ()
    add_options: Callable[[Parser], None] = lambda parser: None
    complaint: Callable[[argparse.Namespace], str] = lambda arguments: ""
    chooses: Sequence[str] = ()
    cases: Callable[[Settings], list[Case]] = lambda settings: training_cases(settings)
    question: Callable[[argparse.Namespace, Settings, Case], Case] = lambda arguments, settings, case: {}
    hopeless: Callable[[Results, Case, float], bool] = lambda results, case, time_limit: False
    variant: Callable[[argparse.Namespace], str] = lambda arguments: ""

    @property
    def name(self) -> str:
        """The name of the script and of its results."""
        return Path(self.file).stem

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The endings of the results file, the page and the picture."""
        return (".json", ".md", ".png") if self.plot else (".json", ".md")

    def main(self) -> None:
        sys.exit(self.run(self.parse()))

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        """The command line; an unknown architecture is an error."""
        known = list(self.looks)
        parser = Parser(f"benchmarks/{self.name}.py", self.text)
        add_device(parser)
        parser.add_argument(
            "--quick", action="store_true", help="tiny models and lengths, to check that everything works"
        )
        parser.add_argument(
            "--architectures",
            type=names,
            default=",".join(self.default or known),
            help=f"comma-separated, of {', '.join(known)}, or all; results of others in --out are kept; "
            "default %(default)s",
        )
        parser.add_argument(
            "--out",
            type=Path,
            help="results file (.json); the report "
            f"({', '.join(self.suffixes[1:])}) goes beside it; default "
            f"{shown_path(BENCHMARKS)}/{self.name}_DEVICE.json, with --quick {self.name}_quick.json there",
        )
        parser.add_argument(
            "--restart", action="store_true", help="measure everything again instead of resuming from --out"
        )
        self.add_limits(parser)
        parser.add_argument(
            "--uncommitted",
            action="store_true",
            help="write to results/ from code with uncommitted changes, which the page shows",
        )
        self.add_options(parser)
        arguments = parser.parse_args(argv)
        chosen = arguments.architectures
        arguments.architectures = known if chosen == ["all"] else chosen
        unknown = [name for name in arguments.architectures if name not in known]
        if unknown:
            parser.error(f"unknown architecture {', '.join(unknown)}; choose from {', '.join(known)}")
        limit = arguments.memory_limit_gib
        if limit is not None and limit < LEAST_MEMORY_GIB:
            least = f"PyTorch and fairseq need to start; give {LEAST_MEMORY_GIB} or more"
            parser.error(f"--memory-limit-gib {limit:g} is less than {least}")
        if complaint := self.complaint(arguments):
            parser.error(complaint)
        return arguments

    def add_limits(self, parser: Parser) -> None:
        """The options that limit a process."""
        parser.add_argument(
            "--time-limit",
            type=positive,
            default=self.time_limit,
            metavar="S",
            help="seconds a process may take before it is ended and becomes a row (default "
            "%(default)s); after a fifth of it no further step is timed",
        )
        parser.add_argument(
            "--memory-limit-gib",
            type=positive,
            metavar="GIB",
            help="memory a process may take; default on a CPU: 80%% of the free memory, on a GPU: all",
        )

    def settings(self, arguments: argparse.Namespace) -> Settings:
        """The settings that the command line asks for."""
        chosen = {key: value for key in self.chooses if (value := getattr(arguments, key))}
        device = choose_device(arguments.device)
        plan = self.settings_for(device, arguments.quick, **chosen)
        threads = 1 if arguments.quick else None  # steps so small wait for each other; else torch chooses
        return {"device": device, "threads": threads, **plan, "architectures": arguments.architectures}

    def measure(self, case: Case, settings: Settings, arguments: argparse.Namespace) -> Case:
        """Run one case in its own process."""
        limits = limits_of(arguments)
        if not limits["out of memory"] and settings["device"] == "cpu":
            limits["out of memory"] = int(0.8 * memory_available())
        question = {
            **settings,
            **self.question(arguments, settings, case),
            **case,
            "benchmark": self.file,
            "memory_limit": limits["out of memory"] or None,
            "enough_s": arguments.time_limit / 5,
        }
        found = run_case(question, arguments.time_limit)
        if reached := limits.get(found["status"]):
            found["limit"] = reached
        return {**case, **found}

    def results_path(self, arguments: argparse.Namespace, device: str) -> Path:
        """The results file of the command line."""
        name = f"{self.name}{self.variant(arguments)}_{'quick' if arguments.quick else device}.json"
        return (arguments.out or BENCHMARKS / name).resolve()

    def run(self, arguments: argparse.Namespace, beside: Sequence[str] = ()) -> int:
        """Measure the missing cases, write results and report, and return the exit status.

        `beside`: the endings of the files that the caller will write beside them.
        """
        settings = self.settings(arguments)
        cases, name = self.cases(settings), f"{self.name}{self.variant(arguments)}"
        device = settings["device"]
        path = self.results_path(arguments, device)
        ours = json_with("records", benchmark=name)
        check_output(path, ours, beside=(*self.suffixes[1:], *beside), makes_folder=True)
        results = start_or_resume(name, path, settings, arguments.restart)
        limits = limits_of(arguments)
        todo = [case for case in cases if not is_done(results, case, limits)]
        done = len(cases) - len(todo)
        print(f"{len(cases)} cases on {device}, {done} done before; results: {shown_path(path)}")
        if todo:
            check_same_machine(path, results["sessions"], device)
            check_committed(path, arguments.uncommitted)
            results["sessions"].append(environment(device))
        start = time.monotonic()
        for number, case in enumerate(todo, 1):
            if is_done(results, case, limits) or self.hopeless(results, case, arguments.time_limit):
                continue
            record = self.measure(case, settings, arguments)
            record["session"] = len(results["sessions"]) - 1
            results["records"] = [r for r in results["records"] if not same_case(r, case)] + [record]
            write_json(path, results)
            progress = f"[{number}/{len(todo)}, {time.monotonic() - start:.0f} s]"
            label = self.looks[case["architecture"]].label
            print(f"{progress} {label}, {place(case)}: {describe(record)}", flush=True)
        return self.finish(results, path)

    def finish(self, results: Results, path: Path) -> int:
        """Write the report and print its tables; 1 if a case failed, 0 otherwise."""
        text = self.markdown(results)
        write_atomically(path.with_suffix(".md"), marked(text).encode())
        if self.plot:
            self.plot(results, path.with_suffix(".png"))
        print(f"\n{text}")
        for suffix in self.suffixes:
            print(f"written: {shown_path(path.with_suffix(suffix))}")
        failed = [r for r in results["records"] if r["status"] == "failed"]
        for record in failed:
            print(f"error: {record['architecture']}, {place(record)}: {record['message']}", file=sys.stderr)
        return 1 if failed else 0


def check_committed(path: Path, uncommitted: bool) -> None:
    """UserError for a record below results/ of uncommitted code, unless that is allowed."""
    if path.is_relative_to(RESULTS) and not uncommitted and commit().endswith("+changes"):
        raise UserError(
            f"{shown_path(path)} would name a commit that is not the code measured; commit your changes, or "
            "give --uncommitted"
        )


def limits_of(arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds and bytes a process may take, by the status of one that took more; 0 bytes if not named."""
    memory = int((arguments.memory_limit_gib or 0) * 2**30)
    return {"time limit": arguments.time_limit, "out of memory": memory}


def write_tables(path: Path, text: str) -> None:
    """Write `text` beside the record `path`, print it, and say where both are."""
    tables = path.with_suffix(".md")
    write_atomically(tables, marked(text).encode())
    print(f"\n{text}\nwritten: {shown_path(path)}, {shown_path(tables)}")


def choose_device(asked: str) -> str:
    """The device `asked` for; raises UserError if it is a GPU and there is none."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was given, but torch sees no GPU; use --device cpu")
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def training_cases(settings: dict[str, Any], kind: str = "training") -> list[Case]:
    """The cases of a `kind`: in each round lengths go up or down, and architectures take turns."""
    return [
        {"kind": kind, "architecture": name, "length": length, "round": turn}
        for turn in range(settings["rounds"])
        for length in settings["lengths"][:: -1 if turn % 2 else 1]
        for name in settings["architectures"]
    ]


def start_or_resume(name: str, path: Path, settings: dict[str, Any], restart: bool) -> Results:
    """The results so far, with the architectures of `settings` added.

    Raises UserError if `path` holds a run with different settings.
    """
    if restart or not path.exists():
        return {"benchmark": name, "settings": settings, "sessions": [], "records": []}
    results = read_json(path)
    before = results.get("settings") if isinstance(results, dict) else None
    names = before.get("architectures", []) if isinstance(before, dict) else []
    names += [name for name in settings["architectures"] if name not in names]
    if before != {**settings, "architectures": names}:
        raise UserError(
            f"{shown_path(path)} holds a run with other settings; name another file with --out, "
            "or measure again with --restart"
        )
    return results


def is_done(results: Results, case: Case, limits: Mapping[str, float]) -> bool:
    """Whether `case` was measured, or an earlier round has shown that it cannot be; a failed one was not.

    `limits`, by status, are those of now: a case that was ended by a lower one may be measured.
    """
    same = {key: value for key, value in case.items() if key != "round"}
    for record in results["records"]:
        status = record["status"]
        measured = status == "ok" and record["round"] == case["round"]
        ended = status in limits and record.get("limit", math.inf) >= limits[status]
        if same_case(record, same) and (measured or ended):
            return True
    return False


def same_case(record: Case, case: Case) -> bool:
    """Whether `record` answers `case`."""
    return all(record.get(key) == value for key, value in case.items())


def place(case: Case) -> str:
    """The position of a case on the axis."""
    if "batch" in case:
        return f"{case['images']}, {case['batch']:,} at once"
    return f"{case['kind']}, length {case['length']:,}" if "length" in case else "decoding"


def describe(record: Case) -> str:
    """A one-line summary of a record, for the progress lines."""
    if record["status"] != "ok":
        return " ".join(filter(None, [record["status"], record.get("message")]))
    if "step_seconds" in record:
        seconds, peak = statistics.median(record["step_seconds"]), record["peak_bytes"] / 2**20
        return f"{seconds:.2f} s per step, peak {peak:,.0f} MiB"
    if "seconds" in record:
        return f"{record['batch'] / record['seconds']:.3g} images/s"
    times = (f"{p}: {1e3 * s:.2f}" for p, s in record["token_seconds"].items())
    return "ms per token at " + ", ".join(times)
