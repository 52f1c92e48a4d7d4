"""`operator_cost.py --decay`: time with decays, against that without and the chunked formula in PyTorch."""

import statistics
import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measuring import ENOUGH_MS, measure
from benchmarks.operator_peers import BOTH, FORWARD, ours
from benchmarks.run import write_tables
from causal_linear_attention import causal_linear_attention
from lab.files import json_with, write_json
from lab.provenance import environment
from lab.publish.plots import Curve, plot_curves
from lab.publish.tables import markdown_table, ran_on, spread, where

DIMS, LENGTH, ROWS = (32, 64, 128), 4096, 32
PLAIN = "ours, no decay"
DECAYED = ("ours, a decay per head", "ours, a decay per position")
CHUNKS = (64, 128)
COLORS = ("#56B4E9", "#0072B2", "#888888", "#000000")
"""Ours in blue; the formula in grey and black."""
RESULT = json_with("environment", "main", "records")


def formula(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, chunk: int) -> Tensor:
    """The chunked formula as usually written: sums of the decays within a chunk and their differences."""
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q, k, v))
    sums = log_decay.unflatten(-1, (-1, chunk)).cumsum(-1)
    within = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).tril().exp().tril()
    since_start, to_end = sums.exp().unsqueeze(-1), (sums[..., -1:] - sums).exp().unsqueeze(-1)
    products = (to_end * k).to(v.dtype).mT @ v
    state, before = torch.zeros_like(products[:, :, 0]), []
    for number, product in enumerate(products.unbind(2)):
        before.append(state)
        state = since_start[:, :, number, -1:] * state + product
    scores = ((q @ k.mT) * within).to(v.dtype)
    out = scores @ v + since_start * (q @ torch.stack(before, 2).to(q.dtype))
    return out.flatten(2, 3).to(v.dtype)


def decay_costs(options) -> None:
    """Measure every width; write decay.json after each, then decay.md and decay.png."""
    device, dtype = options.device, getattr(torch, options.dtype)
    length = max(LENGTH // options.quicker, *CHUNKS)
    result = {
        "environment": environment(device),
        "dtype": options.dtype,
        "main": ours(device, dtype, max(DIMS)),
        "records": [],
    }
    path, enough = options.out / "decay.json", ENOUGH_MS / options.quicker
    for dim in DIMS:
        q, k, v, grad = (torch.rand(1, ROWS, length, dim, device=device).to(dtype) for _ in range(4))
        every = -torch.rand(1, ROWS, length, device=device)
        functions = {PLAIN: (causal_linear_attention, None)}
        for name, decay in zip(DECAYED, (every[0, :, 0], every), strict=True):
            functions[name] = (lambda q, k, v, g: causal_linear_attention(q, k, v, log_decay=g), decay)
        for chunk in CHUNKS:
            functions[f"formula in PyTorch, chunk {chunk}"] = (partial(formula, chunk=chunk), every)
        for part in (FORWARD, BOTH):
            print(f"{part}, D = {dim}", file=sys.stderr, flush=True)
            todo = {name: call(run, (q, k, v, decay), grad, part) for name, (run, decay) in functions.items()}
            for name, times in measure(todo, device, options.rounds, enough).items():
                record = {"part": part, "dim": dim, "length": length, "name": name, "ms": times}
                result["records"].append(record)
        write_json(path, result)
    write_tables(path, decay_report(result))
    plot(result, path.with_suffix(".png"))


def call(function, inputs, grad: Tensor, part: str):
    """A call that computes the output, or the gradients of all inputs as well."""
    inputs = [x for x in inputs if x is not None]
    if part == FORWARD:
        return partial(function, *inputs)

    def run():
        leaves = [x.detach().requires_grad_() for x in inputs]
        torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def plot(result: dict, path: Path) -> None:
    """The least time over that without decays against the width, forward and forward + backward."""
    panels = []
    for part in (FORWARD, BOTH):
        least = {(r["name"], r["dim"]): min(r["ms"]) for r in result["records"] if r["part"] == part}
        dims = sorted({dim for _, dim in least})
        names = dict.fromkeys(name for name, _ in least if name != PLAIN)
        curves = [
            Curve(name, color, dims, [least[name, dim] / least[PLAIN, dim] for dim in dims])
            for name, color in zip(names, COLORS, strict=False)
        ]
        panels.append((part, "head width", "time over that without decays", curves))
    asks = "How much more time do decays take, and how much the same formula in PyTorch?"
    size = f"{result['dtype']}, batch times heads {ROWS}, N = {_length(result['records']):,}"
    note = f"{size}; least times. {ran_on([result['environment']])}"
    plot_curves(path, panels, asks=asks, note=note)


def _length(records: list[dict]) -> int:
    return statistics.mode(record["length"] for record in records)


def decay_report(result: dict) -> str:
    """For each width and part: milliseconds, over those without decay, and the formula's over them."""
    record, records = result["environment"], result["records"]
    rows = []
    for dim, part in dict.fromkeys((r["dim"], r["part"]) for r in records):
        here = {r["name"]: r["ms"] for r in records if (r["dim"], r["part"]) == (dim, part)}
        least = {name: min(ms) for name, ms in here.items()}
        peer = min(least[name] for name in least if name.startswith("formula"))
        for name, ms in here.items():
            over = f"{least[name] / least[PLAIN]:.2f}" if name in DECAYED else "–"
            faster = f"{peer / least[name]:.1f}" if name in DECAYED else "–"
            rows.append([f"{dim}", part, name, spread(ms, "{:.1f}"), over, faster])
    header = ["D", "part", "", "ms", "over no decay", "times the formula's speed"]
    sizes = f"{result['dtype']}, {ROWS} heads, N = {_length(records):,}"
    title = f"{where(record)}; torch {record['versions']['torch']}, {sizes}"
    title += ", heap kept" if "MALLOC_TRIM_THRESHOLD_" in record["allocator"] else ""
    return f"{title}; ratios of the least times\n\n{markdown_table(header, rows)}\n"
