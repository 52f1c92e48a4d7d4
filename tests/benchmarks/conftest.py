"""What the tests of the cost benchmarks share."""

import importlib
from typing import Any

import pytest

from benchmarks import cost_run


@pytest.fixture
def measured_here(monkeypatch) -> None:
    """Cases are measured in the test's own process; processes of their own have tests of their own."""

    def run_case(module: str, case: dict[str, Any], time_limit: float) -> dict[str, Any]:
        measures = importlib.import_module(module).MEASURES
        return {"status": "ok", **measures[case["kind"]](case)}

    monkeypatch.setattr(cost_run, "run_case", run_case)
