"""Shared fixtures: the plugin imported once, fixed seeds, and the reference data beside the repository.

Without fairseq only the tests of the operator are collected.
"""

import gc
import importlib.util
import os
import signal
import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path

# With torch's deterministic mode cuBLAS asks for it, before its first product on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# The tests of downloads serve on this machine, past any proxy.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1"

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FAIRSEQ = importlib.util.find_spec("fairseq") is not None
OPERATOR = ("operator", "cpp", "helpers")

if not FAIRSEQ:
    collect_ignore = [
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name not in OPERATOR
    ]
    collect_ignore += ["operator/test_decoding.py"]  # compares with the plugin's modules


def pytest_report_header():
    return [] if FAIRSEQ else ["fairseq is not installed: only the tests of the operator run"]


def pytest_configure(config):
    # Started in the background of a script, a process ignores Ctrl-C, and so would its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not FAIRSEQ:
        return
    if hands_out(config):
        from tests.helpers import fork_server

        return fork_server.start()
    from lab.run.process import import_quickly
    from tests.helpers import registry

    import_quickly("fairseq.utils").import_user_module(Namespace(user_dir=str(ROOT / "user_dir")))
    registry.share()
    gc.freeze()  # imported objects stay, and no collection need walk through them
    gc.disable()  # nor through the thousands of tests while they are collected


def hands_out(config) -> bool:
    """Whether this process runs no test itself, but hands them to others."""
    return bool(getattr(config.option, "tx", None)) and not hasattr(config, "workerinput")


def pytest_collection_finish():
    gc.freeze()  # nor, while they run, at 0.2 s each time
    gc.enable()


NOT_RUN = pytest.StashKey[int]()
"""How many exhaustive tests are left out."""


def pytest_deselected(items):
    if items:
        exhaustive = sum(item.get_closest_marker("exhaustive") is not None for item in items)
        items[0].config.stash[NOT_RUN] = items[0].config.stash.get(NOT_RUN, 0) + exhaustive


def pytest_sessionfinish(session):
    gc.freeze()  # pytest collects five times before it ends
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = session.config.stash.get(NOT_RUN, 0)


@pytest.hookimpl(optionalhook=True)  # xdist's
def pytest_testnodedown(node):
    """Every worker has left out the same."""
    node.config.stash[NOT_RUN] = getattr(node, "workeroutput", {}).get("not_run", 0)


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(NOT_RUN, 0):
        terminalreporter.write_line(
            f"{count} exhaustive tests were left out; scripts/test.sh --all runs them."
        )


@pytest.hookimpl(trylast=True)  # once it is known which tests run
def pytest_collection_modifyitems(items):
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        items[:] = longest_first(items, workers)


def longest_first(items, workers):
    """Each process begins with its share of the longest tests: xdist gives it so many tests in a row.

    One that started last would leave the other processes idle for its time.
    """
    longest = [item for item in items if item.get_closest_marker("longest")]
    others = iter([item for item in items if not item.get_closest_marker("longest")])
    order = []
    for worker in range(workers):
        size = (len(items) - len(order)) // (workers - worker)
        own = longest[worker::workers]
        order += [*own, *islice(others, max(0, size - len(own)))]
    return [*order, *others]


@pytest.fixture(autouse=True)
def fixed_seed():
    from tests.helpers.cases import seed  # imports torch, which a process that hands out tests does not need

    seed()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with the reference data (`data/`, `golden/`), which is not part of the repository."""
    named = os.environ.get("TRANSNORMER_SHARED")
    folder = Path(named or ROOT.parent / "shared")
    if named and not folder.is_dir():
        pytest.fail(f"TRANSNORMER_SHARED names {named}, which is not a folder")
    if not folder.is_dir():
        pytest.skip(f"reference data not found at {folder} (set TRANSNORMER_SHARED)")
    return folder


@pytest.fixture(scope="session")
def golden_dir(shared_dir) -> Path:
    """The reference arrays computed with the authors' code."""
    folder = shared_dir / "golden"
    if not folder.is_dir():
        pytest.skip(f"reference arrays not found at {folder}")
    return folder
