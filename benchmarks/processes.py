"""Runs one measurement in a fresh Python process; a failure is also a result."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline.children import was_interrupted
from pipeline.files import ROOT, read_json

WORKER = "benchmarks.worker"


def run_case(
    module: str | Path, case: dict[str, Any], time_limit: float, root: Path = ROOT
) -> dict[str, Any]:
    """What `python -m module` answers to `case`.

    Args:
        module: takes two file names, the case to read and the answer to write; a file, if `root` may lack it.
        case: anything JSON can hold.
        time_limit: seconds after which the process is ended.
        root: the checkout whose packages are measured.

    Returns:
        The answer, whose "status" is "ok" or "out of memory"; or a record with the status
        "out of memory" (the system ended it), "time limit" or "failed" and a "message".
    """
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "case.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(case), encoding="utf-8")
        words = [str(module)] if isinstance(module, Path) else ["-m", module]
        paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            done = subprocess.run(
                [sys.executable, *words, str(question), str(answer)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=time_limit,
            )
        except subprocess.TimeoutExpired:
            return {"status": "time limit", "message": f"ended after {time_limit:g} s"}
        if done.returncode == 0 and answer.is_file():
            return read_json(answer)
    if done.returncode == -signal.SIGKILL:
        return {"status": "out of memory", "message": "ended by the system"}
    if was_interrupted(done.returncode):
        raise KeyboardInterrupt
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return {"status": "failed", "message": last[0]}
