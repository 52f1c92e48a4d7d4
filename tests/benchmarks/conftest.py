"""What the tests of the cost benchmarks share."""

import runpy
from typing import Any

import pytest

from benchmarks import run


@pytest.fixture
def measured_here(monkeypatch) -> None:
    """Cases are measured in the test's own process; processes of their own have tests of their own."""

    def run_case(module: str, case: dict[str, Any], time_limit: float) -> dict[str, Any]:
        measures = runpy.run_path(case["benchmark"])["MEASURES"]
        return {"status": "ok", **measures[case["kind"]](case)}

    monkeypatch.setattr(run, "run_case", run_case)
