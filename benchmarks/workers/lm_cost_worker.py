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

from benchmarks.memory import (
    PeakMemory,
    exact_frees,
    keep_frees,
    limit_memory,
    ran_out_of_memory,
    usual_frees,
)
from benchmarks.workers.language_models import LanguageModel, copy_state, fill_state
from pipeline.files import write_json
from pipeline.methods import Size

Sample = dict[str, Any]
Build = Callable[[str, Size, int, int, str], LanguageModel]


def timed(run: Callable[[], Any], device: str) -> float:
    """Seconds `run` takes, including the work it starts on the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_training(case: dict[str, Any], build: Build = LanguageModel) -> dict[str, Any]:
    """Times of training steps in seconds and the peak memory of one step in bytes, see `measure_steps`."""
    return measure_steps(case, build, lambda lm, sample: lm.train_step(sample))


def measure_steps(
    case: dict[str, Any], build: Build, step: Callable[[LanguageModel, Sample], Any]
) -> dict[str, Any]:
    """Times of steps in seconds, the tokens of each, and the peak memory of one in bytes.

    `build` is `LanguageModel` or a class like it; `step` does with a model and a batch what is measured.
    A small step comes first, so that the baseline holds model, optimizer state and libraries. Then
    one full step under the memory meter, which also warms up, then the timed ones; with
    "keep_frees", freed memory is kept for them. Each step has a batch of its own. "bf16" is `--bf16`.
    """
    device, length = case["device"], case["length"]
    rows = case["tokens"] // length
    begin = time.monotonic()
    lm = build(case["architecture"], Size(**case["size"]), length, length, device)
    if case.get("bf16"):
        lm.train_in_bfloat16()
    step(lm, lm.sample(1, min(length, 64)))
    sample = lm.sample(rows, length)
    exact = device == "cuda" or exact_frees()
    meter = PeakMemory(device)
    step(lm, sample)
    peak, whole = meter.bytes(), meter.whole_bytes()
    usual_frees()
    if case.get("keep_frees"):
        keep_frees()
        step(lm, sample)
    seconds: list[float] = []
    tokens: list[int] = []
    while len(seconds) < case["steps"]:
        sample = lm.sample(rows, length)
        seconds.append(timed(partial(step, lm, sample), device))
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
    threads = 1 if case["kind"] == "decoding" else case.get("threads")
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
