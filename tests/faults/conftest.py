"""Shared by the fault tests: a small run to break, and the library that breaks it at one system call."""

import subprocess
from pathlib import Path

import pytest

from tests.faults.runs import Training
from tests.faults.warm import Warm
from tests.helpers.once import filled_once
from tests.helpers.tiny import write_experiment
from tests.lab.conftest import (  # noqa: F401  (fixtures)
    BASE,
    corpus,
    encoder_configs,
    encoder_corpus,
    glue,
    pretrained,
    quick,
)


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory) -> Path:
    """fault.c, compiled."""
    library = tmp_path_factory.mktemp("faults") / "fault.so"
    source = Path(__file__).with_name("fault.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-pthread", source, "-o", library, "-ldl"], check=True)
    return library


@pytest.fixture(scope="session")
def training(tmp_path_factory, corpus, root, fault_library) -> Training:  # noqa: F811
    """A run of 28 updates over three epochs, saved after every fifth."""
    changes = {
        "criterion": {"_name": "cross_entropy"},
        "optimization": {"max_update": 28, "update_freq": [1]},
        "checkpoint": {"save_interval_updates": 5},
    }
    folder = tmp_path_factory.mktemp("configs") / "faults"
    config = write_experiment(folder, BASE, "transnormer_t1", **changes)
    return Training(Warm(str(fault_library), str(root)), config, corpus)


@pytest.fixture(scope="session")
def unbroken(training, tmp_path_factory) -> Path:
    """The folder of a run that nothing happened to."""

    def fill(folder: Path) -> None:
        assert training.run(folder / "run") == [0]

    return filled_once(tmp_path_factory, "unbroken", fill) / "run"


@pytest.fixture(autouse=True)
def kind_of_fault(request, record_property) -> None:
    """scripts/lab.sh check faults counts by what `pytestmark` or the test's own mark names.

    A test that breaks its run several times records how often as the property "times".
    """
    record_property("fault", request.node.get_closest_marker("fault").args[0])
