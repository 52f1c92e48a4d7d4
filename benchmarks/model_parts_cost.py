#!/usr/bin/env python3
"""Cost of TransNormer beside a vanilla model, and of the PyTorch backend beside a plain chunk of 128.

A decoding step at position 10, storages kept for the backward pass, peak memory of a training step,
training steps of five sizes, the quickstart's among them, and the share of a step that matrix products and
attention itself take. With --baseline another checkout of the project is measured in the same run. Every
case runs in its own process on one thread, checkouts take turns, and so do the architectures inside;
times are CPU time, since the machine may do other things. Writes model_parts_cost.json and .md into --out.
Takes about half an hour.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/model_parts_cost.py")

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.measuring import forward_and_backward
from benchmarks.models import SMALL, LanguageModel, Size, copy_state
from benchmarks.run import write_tables
from benchmarks.worker import measure_steps, run_case
from causal_linear_attention import causal_linear_attention
from lab.console import Parser, add_out_dir, count, out_dir, run_command
from lab.errors import UserError
from lab.files import BENCHMARKS, ROOT, check_output, json_with, shown_path, write_json
from lab.methods import LANGUAGE_MODELS, TRANSNORMERS, VANILLA
from lab.provenance import commit, environment
from lab.publish.tables import markdown_table, where

RESULT = json_with("environment", "baseline", "records")
NAMES = [VANILLA, *TRANSNORMERS]
DEEP = Size(layers=4, width=192, heads=4, vocabulary=1000)
QUICKSTART = Size(layers=4, width=128, heads=4, vocabulary=2000)
WIDE = Size(layers=2, width=512, heads=8, vocabulary=1000)
TRAINED = (
    (SMALL, 512, 2048, "adam"),
    (SMALL, 1024, 2048, "adam"),
    (QUICKSTART, 256, 1024, "adamw_fused"),
    (DEEP, 512, 2048, "adam"),
    (WIDE, 512, 1024, "adam"),
)
"""Size, length of a row, tokens of a step and optimizer; QUICKSTART as in configs/quickstart."""
DECODED = Size(layers=6, width=192, heads=4, vocabulary=1000)
LENGTHS = (512, 1024, 2048, 4096, 8192)
TIME_LIMIT = 600
DEFAULT = BENCHMARKS / "model_parts"
STEPS = 8  # of decoding, timed together
ARITHMETIC = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "forward",
    "backward",
    "blocks",
    "blocks_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}
"""Operators that multiply matrices, or that compute attention from queries, keys and values."""


class OperatorCalls(TorchDispatchMode):
    """Counts the operators that reach PyTorch's dispatcher."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


class OperatorTimes(TorchDispatchMode):
    """Adds up the CPU time, in this thread, of the operators of ARITHMETIC."""

    seconds = 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        start = time.thread_time()
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in ARITHMETIC:
            self.seconds += time.thread_time() - start
        return result


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
    given = size, length, length, "cpu", case.get("optimizer", "adam")
    return {name: LanguageModel(name, *given) for name in case["architectures"]}


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


def share(case: dict[str, Any]) -> dict[str, Any]:
    """The part of a training step's time that the operators of ARITHMETIC take."""
    built, rows = models(case, case["length"]), case["tokens"] // case["length"]
    found = {}
    for name, lm in built.items():
        sample, seconds = lm.sample(rows, case["length"]), []
        for _ in range(case["rounds"] + 1):
            with OperatorTimes() as times:
                lm.train_step(sample)
            seconds.append(times.seconds)
        (step,) = in_turns({name: lambda lm=lm, s=sample: lm.train_step(s)}, case["rounds"]).values()
        found[name] = statistics.median(seconds[1:]) / statistics.median(step)
    return {"shares": found}


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
    return {"kib": measure_steps(question)["peak_bytes"] / 1024 / case["tokens"]}


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
    runs = {name: lambda f=f: f(q, k, v) for name, f in functions.items()}
    runs |= {f"{name}, backward too": forward_and_backward(f, q, k, v, grad) for name, f in functions.items()}
    return {"seconds": in_turns(runs, case["rounds"])}


MEASURES = {f.__name__: f for f in (decoding, training, share, kept, peak, backend)}


def cases(rounds: int) -> list[dict[str, Any]]:
    """The cases of one turn of a checkout."""
    shared, small = {"architectures": NAMES, "rounds": rounds}, SMALL.as_dict()
    found = [
        {"kind": "decoding", "size": DECODED.as_dict(), **shared, "rounds": 10 * rounds},
        {"kind": "kept", "size": DEEP.as_dict(), **shared, "length": 1024},
    ]
    for size, length, tokens, optimizer in TRAINED:
        measured = {"size": size.as_dict(), "length": length, "tokens": tokens, "optimizer": optimizer}
        found += [{"kind": kind, **shared, **measured} for kind in ("training", "share")]
    for name in NAMES:
        found.append({"kind": "peak", "architecture": name, "size": small, "length": 1024, "tokens": 16384})
    return found + [{"kind": "backend", "length": length, "rounds": 3 * rounds} for length in LENGTHS]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/model_parts_cost.py", __doc__)
    add_out_dir(parser, shown_path(DEFAULT))
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="another checkout, measured too")
    parser.add_argument("--turns", type=count, default=3, help="of the checkouts; default: %(default)s")
    parser.add_argument("--rounds", type=count, default=5, help="samples per turn; default: %(default)s")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.baseline and not (arguments.baseline / "benchmarks" / "measuring.py").is_file():
        needs = "--baseline needs one with benchmarks/measuring.py"
        raise UserError(f"{arguments.baseline} is not a checkout of the project, or too old; {needs}")
    return arguments


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Records of all cases, checkouts in turns."""
    checkouts = {"now": ROOT}
    if arguments.baseline:
        checkouts = {"before": arguments.baseline.resolve(), **checkouts}
    todo = [
        (turn, case, name)
        for turn in range(arguments.turns)
        for case in cases(arguments.rounds)
        for name in checkouts
        if turn == 0 or case["kind"] not in ("kept", "peak")  # these are the same every time
    ]
    records, start = [], time.monotonic()
    for number, (turn, case, name) in enumerate(todo, 1):
        question = {**case, "benchmark": __file__, "threads": 1}
        found = run_case(question, TIME_LIMIT, checkouts[name])
        if found["status"] != "ok":
            why = found.get("message", found["status"])
            raise UserError(f"{case['kind']} of the checkout {name!r} failed: {why}")
        records.append({**case, "checkout": name, "turn": turn, **found})
        passed = time.monotonic() - start
        print(f"[{number}/{len(todo)}, {passed:.0f} s] {case['kind']}, {name}", flush=True)
    return records


def ratios(records: list[dict[str, Any]]) -> dict[tuple[str, str, str], float]:
    """(measure, of what, checkout) to the figure over vanilla's, or over the plain chunk's; or to a share.

    Times are compared inside a process, where the two took turns: the median over processes of the ratio of
    medians.
    """
    found, peaks = defaultdict(list), {}
    for r in records:
        checkout, place = r["checkout"], f", length {r['length']:,}" if "length" in r else ""
        if r["kind"] in ("training", "share"):
            place += f", width {r['size']['width']}, {r['size']['layers']} layers"
        if r["kind"] == "peak":
            peaks[r["architecture"], checkout] = r["kib"]
            continue
        if r["kind"] == "share":
            for name, value in r["shares"].items():
                found[f"share of arithmetic{place}", name, checkout].append(value)
            continue
        base = "plain" if r["kind"] == "backend" else VANILLA
        values = {f"time of {r['kind']}{place}": r.get("seconds")}
        values |= {f"{r['kind']}{place}": r.get("kib"), f"operator calls of {r['kind']}": r.get("calls")}
        for measure, by_name in values.items():
            for name, value in (by_name or {}).items():
                suffix = ", backward too" if name.endswith(", backward too") else ""
                if name == base + suffix:
                    continue
                figures = [
                    statistics.median(x) if isinstance(x, list) else x
                    for x in (value, by_name[base + suffix])
                ]
                found[measure, name, checkout].append(figures[0] / figures[1])
    result = {key: statistics.median(values) for key, values in found.items()}
    for (name, checkout), kib in peaks.items():
        if name != VANILLA:
            result["peak memory, length 1,024", name, checkout] = kib / peaks[VANILLA, checkout]
    return result


def markdown(result: dict[str, Any]) -> str:
    """The table as Markdown."""
    found = ratios(result["records"])
    checkouts = list(dict.fromkeys(key[2] for key in found))
    rows = []
    for measure, name in dict.fromkeys(key[:2] for key in found):
        label = LANGUAGE_MODELS[name].label if name in LANGUAGE_MODELS else name.replace("torch", "backend")
        rows.append([measure, label, *(f"{found[measure, name, c]:.2f}" for c in checkouts)])
    record = result["environment"]
    caption = (
        f"Over vanilla transformer_lm, the PyTorch backend over a plain chunk of 128; CPU time. Decoding: "
        f"{DECODED}, position 10; kept: {DEEP}; peak: {SMALL}. Share of arithmetic: matrix products and "
        f"attention itself, of the model's own training step. {where(record, 1)}; torch "
        f"{record['versions']['torch']}; commit {record['commit']}, {record['date']}."
    )
    if result["baseline"]:
        caption += f" Before: commit {result['baseline']}."
    return f"{caption}\n\n{markdown_table(['', '', *checkouts], rows)}\n"


def main() -> None:
    arguments = parse_arguments()
    path = (out_dir(arguments) or DEFAULT) / "model_parts_cost.json"
    check_output(path, RESULT, beside=(".md",), makes_folder=True)
    result = {
        "environment": environment("cpu"),
        "baseline": commit(arguments.baseline) if arguments.baseline else None,
        "records": measure(arguments),
    }
    write_json(path, result)
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
