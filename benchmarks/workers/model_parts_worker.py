"""One case of what TransNormer's parts cost, in a process of its own; started by `model_parts_cost.py`.

Run with another checkout of the project on PYTHONPATH, it measures that one.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.workers.language_models import LanguageModel, copy_state
from benchmarks.workers.lm_cost_worker import measure_training
from causal_linear_attention import causal_linear_attention
from pipeline.files import write_json
from pipeline.methods import Size

STEPS = 8


class OperatorCalls(TorchDispatchMode):
    """Counts what reaches PyTorch's dispatcher."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def in_turns(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of CPU time that each function takes in this thread, in turns; a first round does not count."""
    times = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            start = time.thread_time()
            function()
            if turn:
                times[name].append(time.thread_time() - start)
    return times


def models(case: dict[str, Any], length: int) -> dict[str, LanguageModel]:
    """The architectures of the case."""
    size = Size(**case["size"])
    return {name: LanguageModel(name, size, length, length, "cpu") for name in case["architectures"]}


def decoding(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a decoding step from position 10 on, and operators it calls."""
    built, position = models(case, 64), 10
    tokens = next(iter(built.values())).tokens(1, 64)
    steps, calls = {}, {}
    with torch.no_grad():
        for name, lm in built.items():
            state: dict = {}
            decoder = lm.model.eval().decoder
            for end in range(1, position + 1):
                decoder(tokens[:, :end], incremental_state=state)

            def run(decoder=decoder, state=state):
                own = copy_state(state)
                for end in range(position + 1, position + 1 + STEPS):
                    decoder(tokens[:, :end], incremental_state=own)

            steps[name] = run
            with OperatorCalls() as counted:
                decoder(tokens[:, : position + 1], incremental_state=copy_state(state))
            calls[name] = counted.calls
        times = in_turns(steps, case["rounds"])
    return {"seconds": {name: [x / STEPS for x in found] for name, found in times.items()}, "calls": calls}


def training(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a training step of `tokens` tokens in rows of `length`."""
    built, rows = models(case, case["length"]), case["tokens"] // case["length"]
    samples = {name: lm.sample(rows, case["length"]) for name, lm in built.items()}
    runs = {name: lambda lm=lm, s=samples[name]: lm.train_step(s) for name, lm in built.items()}
    return {"seconds": in_turns(runs, case["rounds"])}


def kept(case: dict[str, Any]) -> dict[str, Any]:
    """KiB a token in distinct storages that the forward pass keeps, parameters aside, logits left out."""
    found = {}
    for name, lm in models(case, case["length"]).items():
        weights = {p.untyped_storage().data_ptr() for p in lm.model.parameters()}
        sizes: dict[int, int] = {}
        alive = []

        def pack(x: Tensor, weights=weights, sizes=sizes, alive=alive) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = storage.nbytes()
                alive.append(x)  # so that no later storage takes its address
            return x

        tokens = lm.tokens(2, case["length"])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            lm.model.train().decoder(tokens, features_only=True)
        found[name] = sum(sizes.values()) / 1024 / tokens.numel()
    return {"kib": found}


def peak(case: dict[str, Any]) -> dict[str, Any]:
    """Peak memory of a training step, KiB a token, of one architecture."""
    question = {**case, "device": "cpu", "steps": 1, "enough_s": 0}
    return {"kib": measure_training(question)["peak_bytes"] / 1024 / case["tokens"]}


def plain(q: Tensor, k: Tensor, v: Tensor, size: int = 128) -> Tensor:
    """Causal linear attention as one writes it: chunks, no loop, no skipping."""
    q, k, v = (x.unflatten(2, (-1, size)) for x in (q, k, v))
    sums = (k.mT @ v).cumsum(2)
    before = torch.cat([torch.zeros_like(sums[:, :, :1]), sums[:, :, :-1]], 2)
    return ((q @ k.mT).tril() @ v + q @ before).flatten(2, 3)


def backend(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the PyTorch backend and of `plain`, forward and forward + backward; 8 heads of 64."""
    q, k, v, grad = torch.randn(4, 1, 8, case["length"], 64).unbind(0)
    functions = {"plain": plain, "torch": lambda *x: causal_linear_attention(*x, backend="torch")}

    def both(function: Callable) -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(function(*leaves), leaves, grad)

    runs = {name: lambda f=f: f(q, k, v) for name, f in functions.items()}
    runs |= {f"{name}, backward too": lambda f=f: both(f) for name, f in functions.items()}
    return {"seconds": in_turns(runs, case["rounds"])}


MEASURES = {f.__name__: f for f in (decoding, training, kept, peak, backend)}


def main() -> None:
    """Measure the case of the command line on one thread."""
    question, answer = map(Path, sys.argv[1:3])
    case = json.loads(question.read_text(encoding="utf-8"))
    torch.manual_seed(1)
    torch.set_num_threads(1)
    write_json(answer, {"status": "ok", **MEASURES[case["kind"]](case)})


if __name__ == "__main__":
    main()
