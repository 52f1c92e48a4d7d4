"""Measures one case of a benchmark in a fresh Python process; a failure is also a result.

`run_case` starts the process, which reads the case from one JSON file and writes its result to a second. The
case names the file of its benchmark, whose `MEASURES` has a function for each kind of case. With another
checkout of the project on PYTHONPATH that one is measured.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import (
    PeakMemory,
    exact_frees,
    keep_frees,
    limit_memory,
    ran_out_of_memory,
    timed,
    usual_frees,
)
from benchmarks.models import LanguageModel, Size
from lab.children import was_interrupted
from lab.files import ROOT, read_json, write_json

WORKER = "benchmarks.worker"
Case = dict[str, Any]
Build = Callable[[str, Size, int, int, str], LanguageModel]
Step = Callable[[LanguageModel, dict[str, Any]], Any]


def run_case(case: Case, time_limit: float, root: Path = ROOT) -> dict[str, Any]:
    """The answer of this module to `case`, in a separate process.

    Args:
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
        words = ["-m", WORKER] if root == ROOT else [__file__]  # of this checkout, whichever is measured
        paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            done = subprocess.run(
                [sys.executable, *words, str(question), str(answer)],
                # The folder where the command is given may be another checkout: it must not come first.
                env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
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


def measure_steps(case: Case, build: Build = LanguageModel, step: Step | None = None) -> dict[str, Any]:
    """Times of steps in seconds, the tokens of each, and the peak memory of one in bytes.

    `build` is `LanguageModel` or a class like it; `step` is the measured work on a model and a batch, by
    default its training step. A small step comes first, so that the baseline holds model, optimizer state and
    libraries. Then one full step under the memory meter, which also warms up, then the timed ones; with
    "keep_frees", freed memory is kept for them. Each step has its own batch, of "tokens" tokens, by default
    one row. "bf16" is `--bf16`.
    """
    device, length = case["device"], case["length"]
    rows = (case.get("tokens") or length) // length
    begin = time.monotonic()
    lm = build(case["architecture"], Size(**case["size"]), length, length, device)
    if case.get("bf16"):
        lm.train_in_bfloat16()
    run = partial(step, lm) if step else lm.train_step
    run(lm.sample(1, min(length, 64)))
    sample = lm.sample(rows, length)
    exact = device == "cuda" or exact_frees()
    meter = PeakMemory(device)
    run(sample)
    peak, whole = meter.bytes(), meter.whole_bytes()
    usual_frees()
    if case.get("keep_frees"):
        keep_frees()
        run(sample)
    seconds: list[float] = []
    tokens: list[int] = []
    while len(seconds) < case["steps"]:
        sample = lm.sample(rows, length)
        seconds.append(timed(partial(run, sample), device))
        tokens.append(sample["ntokens"])
        if time.monotonic() - begin > case["enough_s"]:
            break
    return {
        "parameters": lm.parameters,
        "step_seconds": seconds,
        "step_tokens": tokens,
        "peak_bytes": peak,
        "whole_peak_bytes": whole,
        "peak_exact": exact,
    }


def main() -> None:
    """Measure the case on the command line."""
    question, answer = map(Path, sys.argv[1:3])
    case = json.loads(question.read_text(encoding="utf-8"))
    measure = runpy.run_path(case["benchmark"])["MEASURES"][case["kind"]]
    torch.manual_seed(1)
    # One token is too little work to share: threads would only wait for each other.
    threads = 1 if case["kind"] == "decoding" else case.get("threads")
    if threads:
        torch.set_num_threads(threads)
    if case.get("memory_limit"):
        limit_memory(case["device"], case["memory_limit"])
    try:
        result = {"status": "ok", **measure(case)}
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        result = {"status": "out of memory"}
    write_json(answer, result)


if __name__ == "__main__":
    main()
