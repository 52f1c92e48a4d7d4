"""Made-up results of the cost benchmarks, and what is recorded of a machine."""

from collections.abc import Callable
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
    settings: dict[str, Any], cases: list[dict[str, Any]], answer: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """What a benchmark would have written: `answer(case)` is what was measured, or a status."""
    records = []
    for case in cases:
        found = answer(case)
        measured = {"status": found} if isinstance(found, str) else {"status": "ok", **found}
        records.append({**case, "session": 0, **measured})
    return {"settings": settings, "sessions": [SESSION], "records": records}
