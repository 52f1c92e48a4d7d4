"""docs/quickstart.ipynb runs from its first cell to its last, at tiny size."""

import json
import os
import re
import subprocess
import sys

import pytest

TINY = "WIDTH, LAYERS, HEADS, UPDATES, ROWS, LENGTH, WRITTEN, POSITIONS = 16, 1, 2, 50, 2, 16, 12, [8, 16]"


def script(notebook: dict) -> str:
    """The code cells in their order; after the one with the sizes come the tiny ones."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    assert len(tagged) == 1
    sources = [("".join(cell["source"]), TINY if cell is tagged[0] else "") for cell in cells]
    return "\n\n".join(part for pair in sources for part in pair)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_notebook_runs(root, tmp_path):
    path = root / "docs" / "quickstart.ipynb"
    notebook = json.loads(path.read_text())
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    further = "assert sum(losses[-5:]) < sum(losses[:5])\nplt.savefig(sys.argv[1])\n"
    (tmp_path / "quickstart.py").write_text(f"{script(notebook)}\n\n{further}")
    command = [sys.executable, tmp_path / "quickstart.py", tmp_path / "cost.png"]
    environment = {**os.environ, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root / "docs", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"update 50: \d+\.\d\d nats", done.stdout) and "\nThe " in done.stdout
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
