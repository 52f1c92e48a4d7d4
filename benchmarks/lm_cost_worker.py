"""Measures one case of the language models' cost in its own process; started by `lm_cost.py`.

Reads the case from the first JSON file and writes the measurements to the second.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.language_models import LanguageModel, copy_state, fill_state
from benchmarks.memory import (
    PeakMemory,
    exact_frees,
    keep_frees,
    limit_memory,
    ran_out_of_memory,
    usual_frees,
)
from pipeline.files import write_json
from pipeline.methods import Size


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds `run` takes, including the work it starts on the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_training(case: dict[str, Any], build: type = LanguageModel) -> dict[str, Any]:
    """Times of training steps in seconds and the peak memory of one step in bytes.

    `build` is `LanguageModel` or a class like it.
    A small step comes first, so that the baseline holds model, optimizer state and libraries. Then
    one full step under the memory meter, which also warms up, then the timed ones; with
    "keep_frees", freed memory is kept for them.
    """
    device, length = case["device"], case["length"]
    rows = case["tokens"] // length
    begin = time.monotonic()
    lm = build(case["architecture"], Size(**case["size"]), length, length, device)
    lm.train_step(lm.sample(1, min(length, 64)))
    sample = lm.sample(rows, length)
    exact = device == "cuda" or exact_frees()
    meter = PeakMemory(device)
    lm.train_step(sample)
    peak = meter.bytes()
    usual_frees()
    if case.get("keep_frees"):
        keep_frees()
        lm.train_step(sample)
    seconds = []
    while len(seconds) < case["steps"]:
        seconds.append(timed(lambda: lm.train_step(sample), device))
        if time.monotonic() - begin > case["enough_s"]:
            break
    return {
        "parameters": lm.parameters,
        "step_seconds": seconds,
        "peak_bytes": peak,
        "peak_exact": exact,
    }


@torch.no_grad()
def measure_decoding(case: dict[str, Any]) -> dict[str, Any]:
    """Times of single decoding steps in seconds, one sentence, positions taking turns.

    A visit to position P times tokens P, P+1, … of one block of 64, always from the same state. Positions
    whose context takes too long to read are skipped.
    """
    device, positions, steps = case["device"], sorted(case["positions"]), case["steps"]
    longest = positions[-1] + steps
    size = Size(**case["size"])
    lm = LanguageModel(case["architecture"], size, longest, longest, device)
    lm.model.eval()
    tokens = lm.tokens(1, longest)
    states, state, before = {}, {}, 0
    deadline = time.monotonic() + 2 * case["enough_s"]
    for position in positions:
        if not fill_state(lm.model, tokens, state, before, position, deadline):
            break
        states[position], before = copy_state(state), position
    seconds: dict[str, list[float]] = {str(p): [] for p in states}
    begin = time.monotonic()
    for visit in range(case["visits"] + 1):
        for position in states:
            state = copy_state(states[position])
            for at in range(position, position + steps):
                step = partial(lm.model.decoder, tokens[:, : at + 1], incremental_state=state)
                spent = timed(step, device)
                if visit:  # the first visit warms up
                    seconds[str(position)].append(spent)
        if visit and time.monotonic() - begin > case["enough_s"]:
            break
    return {"parameters": lm.parameters, "token_seconds": seconds}


MEASURES = {"training": measure_training, "decoding": measure_decoding}


def main(measures: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = MEASURES) -> None:
    """Measure the case on the command line with the function in `measures` for its kind."""
    question, answer = map(Path, sys.argv[1:3])
    case = json.loads(question.read_text(encoding="utf-8"))
    torch.manual_seed(1)
    # One token is too little work to share: threads would only wait for each other.
    threads = 1 if case["kind"] == "decoding" else case["threads"]
    if threads:
        torch.set_num_threads(threads)
    if case["memory_limit"]:
        limit_memory(case["device"], case["memory_limit"])
    try:
        result = {"status": "ok", **measures[case["kind"]](case)}
    except (RuntimeError, MemoryError) as error:
        if not ran_out_of_memory(error):
            raise
        result = {"status": "out of memory"}
    write_json(answer, result)


if __name__ == "__main__":
    main()
