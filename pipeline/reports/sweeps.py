"""What the reports of sweeps share: reading the finished runs, and the notes below a table."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.reports.tables import where

Result = dict[str, Any]
LOADED = "; training times are those of a machine that may have done other work"


def preset_and_flags(result: Result) -> Any:
    """The setting of a run that has a preset."""
    return result["preset"], result["flags"]


def read_sweep(
    folder: Path,
    order: Callable[[Result], Any],
    setting: Callable[[Result], Any] = preset_and_flags,
    pattern: str = "*/seed*.json",
) -> list[Result]:
    """The finished runs in `folder`, sorted by `order`; UserError if they differ in `setting`."""
    results = [read_json(path) for path in sorted(folder.glob(pattern))]
    if any(setting(result) != setting(results[0]) for result in results):
        raise UserError(f"{folder} holds runs of different settings; give each setting its own --out")
    return sorted(results, key=order)


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each method, in their order."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["method"], []).append(result)
    return found


def with_flags(flags: Sequence[str]) -> str:
    """The flags that the user gave for all runs, with a word before them; empty without."""
    return f" with {' '.join(flags)}" if flags else ""


def over_seeds(results: Sequence[Result], mean: str = "median") -> str:
    """What the figures are: the `mean` (lowest to highest) over which seeds, or the only seed."""
    seeds = sorted({result["seed"] for result in results})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{mean} (lowest to highest) over the seeds {', '.join(map(str, seeds))}"


def measured_on(results: Sequence[Result], remark: str = "") -> str:
    """Machines, days and commits, in a sentence that `remark` ends."""
    machines = sorted({f"{where(r['environment'])}, {r['environment']['date']}" for r in results})
    commits = ", ".join(sorted({r["environment"]["commit"] for r in results}))
    return f"Measured on {'; '.join(machines)} (commit {commits}){remark}."


def of_first_seed(results: Sequence[Result]) -> list[Result]:
    """Those that a picture shows."""
    seed = min(result["seed"] for result in results)
    return [result for result in results if result["seed"] == seed]


def first_seed_on(results: Sequence[Result]) -> str:
    """The seed that a picture shows, its machine and day, as a sentence."""
    shown = of_first_seed(results)[0]
    return f"Seed {shown['seed']}, {where(shown['environment'])}, {shown['environment']['date']}."
