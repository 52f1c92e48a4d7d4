"""Made-up results of the cost benchmarks and environments."""

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

SESSION = {
    "date": "2000-01-02",
    "commit": "abc",
    "hardware": {"cpu": "a CPU", "cores": 2},
    "threads": 2,
    "versions": {"torch": "2.13.0"},
}
ENVIRONMENT = {**SESSION, "device": "cpu"}


def results(
    module: ModuleType, names: Iterable[str], answer: Callable[[dict[str, Any]], Any], *words: str
) -> dict[str, Any]:
    """The results of a benchmark of the architectures `names` on a CPU.

    `answer(case)` is what was measured, or a status; `words` are the rest of the command line.
    """
    benchmark = module.BENCHMARK
    command = ["--device", "cpu", "--architectures", ",".join(names), *words]
    settings = benchmark.settings(benchmark.parse(command))
    records = []
    for case in benchmark.cases(settings):
        found = answer(case)
        measured = {"status": found} if isinstance(found, str) else {"status": "ok", **found}
        records.append({**case, "session": 0, **measured})
    return {"settings": settings, "sessions": [SESSION], "records": records}


def steps(seconds: float, peak: int) -> dict[str, Any]:
    """An answer: three steps of as many `seconds`, and the `peak` of memory in bytes."""
    return {"step_seconds": [seconds] * 3, "peak_bytes": peak}
