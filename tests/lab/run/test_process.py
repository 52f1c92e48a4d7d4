"""Libraries for scores are loaded when a score is computed; the memory that a process held."""

import gc
import sys

import pytest
import torch

from lab.run import process as fairseq_process


@pytest.fixture
def caller(tmp_path, monkeypatch):
    """A module that imports functions of a library, quickly imported itself."""
    library = tmp_path / "scorelib"
    library.mkdir()
    (library / "__init__.py").write_text("VERSION = 1\n")
    (library / "metrics.py").write_text("def score(x, scale=1):\n    return x * scale\n")
    (tmp_path / "caller.py").write_text(
        "import gc\nfrom scorelib import metrics\nfrom scorelib.metrics import score\n"
        "collects = gc.isenabled()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fairseq_process, "ONLY_FOR_SCORES", ("scorelib", "scorelib.metrics"))
    yield fairseq_process.import_quickly("caller")
    for name in ("caller", "scorelib", "scorelib.metrics"):
        sys.modules.pop(name, None)


def test_a_function_loads_its_library_when_called(caller):
    assert "scorelib" not in sys.modules and "scorelib.metrics" not in sys.modules
    assert caller.score(3, scale=2) == 6
    assert caller.metrics.score(4) == 4
    assert sys.modules["scorelib"].VERSION == 1


def test_no_garbage_is_collected_meanwhile(caller):
    assert not caller.collects and gc.isenabled()


def test_a_missing_module_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(fairseq_process, "ONLY_FOR_SCORES", ("scorelib",))
    with pytest.raises(ImportError):
        fairseq_process.import_quickly("no_such_module")
    assert "scorelib" not in sys.modules and gc.isenabled()


def test_the_peak_is_that_of_all_updates(monkeypatch):
    """fairseq resets the count at each."""
    held = iter((100, 300, 200))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: next(held))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: None)
    with fairseq_process.resets_noted() as peaks:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_memory_stats()
    assert fairseq_process.peak_memory(peaks) == 300
