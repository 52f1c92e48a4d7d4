#!/usr/bin/env python3
"""Speed of causal linear attention, compared with other implementations and softmax.

Forward, forward + backward and the decoding step of the compiled kernels, of the PyTorch path, of the
quadratic product, of scaled_dot_product_attention (softmax) and, where installed, of
pytorch-fast-transformers and flash-linear-attention: one run, rounds interleaved, medians with their range.
Also: a single head, bfloat16, peak memory, and the sequence length above which linear beats softmax.
Writes operator_cost.json, .md and .png into the folder of --out. On a CPU the heap decides
much of the time at long lengths, so everything is measured with freed memory kept ("heap kept") and the
longest length again with the C library's defaults ("heap stock"), without and with huge pages, each in its
own process.

--shapes fla measures instead, in bfloat16, the six shapes of flash-linear-attention, of which Helion
publishes both libraries' times on an H100 (results/peers), with the time that moving each tensor once would
take: anchor.json and .md.
--decay measures instead the time with decays, against that without and the chunked formula, on a CPU with the
heap kept: decay.json, .md and .png.
On a GPU results are written after every length or shape.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/operator_cost.py")

import torch

from benchmarks import operator_decay
from benchmarks.measuring import (
    ENOUGH_MS,
    PeakMemory,
    exact_frees,
    forward_and_backward,
    measure,
    peak,
    usual_frees,
)
from benchmarks.operator_peers import (
    BOTH,
    FAST,
    FAST_TUNED,
    FORWARD,
    LIMITS,
    SOFTMAX,
    TENSORS,
    anchor,
    calls,
    check_build,
    implementations,
    ours,
    shapes,
)
from benchmarks.operator_report import CACHE, DECODING, ONE_HEAD, goals, markdown, plot
from benchmarks.run import choose_device, write_tables
from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    operators,
    select_backend,
)
from lab.console import Parser, add_device, add_out_dir, count, out_dir, run_command
from lab.errors import UserError
from lab.files import BENCHMARKS, check_output, json_with, shown_path, write_json
from lab.provenance import environment

RESULT = json_with("environment", "peak", "records")
LENGTHS = (512, 2048, 8192, 32768)
HEAPS = {
    "kept": {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"},
    "stock": {},
    "stock with huge pages": {"THP_MEM_ALLOC_ENABLE": "1"},  # torch asks Linux for them
}
LONGEST_ONLY = ("stock", "stock with huge pages")
QUICKER = 64  # times shorter with --quick
CROSSOVER_DIMS, CROSSOVER_LENGTHS = (16, 32, 64, 128), (64, 128, 256, 512, 1024, 2048, 4096)
DTYPES = ("float32", "bfloat16", "float16")
CHUNK = 16  # of the compiled CPU kernels, in the count of operations


def timed(options, tensors, functions, part: str, heap: str) -> list[dict]:
    """Records of one part at one length; the compiled kernels' with rates."""
    q, k, v = tensors
    *_, length, dim = q.shape
    todo = calls(functions, part, (q, k, v, torch.rand_like(v)))
    print(f"{part}, N = {length}", file=sys.stderr, flush=True)
    both = part != FORWARD
    # A backward pass does about 2.5 times the forward's operations.
    work = q.numel() * (4 * dim + 2 * CHUNK) * (3.5 if both else 1)
    moved = TENSORS[BOTH if both else FORWARD] * q.numel() * q.element_size()
    records = []
    for name, times in measure(todo, options.device, options.rounds, ENOUGH_MS / options.quicker).items():
        rates = {"GF/s": work / min(times) / 1e6, "GB/s": moved / min(times) / 1e6}
        record = {"part": part, "heap": heap, "length": length, "name": name, "ms": times}
        records.append(record | (rates if name.startswith("ours") else {}))
    return records


def draw(options, length: int, dtype: torch.dtype, dim: int | None = None, heads: int | None = None):
    """Random q, k and v `(B, H, length, D)`; one row of the batch if `heads` are given."""
    shape = (1 if heads else options.batch, heads or options.heads, length, dim or options.dim)
    return [torch.rand(shape, device=options.device).to(dtype) for _ in range(3)]


def costs(options, dtype: torch.dtype, heap: str) -> Iterator[list[dict]]:
    """Records of every part with this heap, length by length; of the longest only for `LONGEST_ONLY`."""
    builds = {FAST: options.fast_transformers, FAST_TUNED: options.fast_transformers_tuned}
    builds = {name: folder for name, folder in builds.items() if name == FAST or folder}
    made, device = implementations(options.device, dtype, builds, options.dim), options.device
    name = ours(device, dtype, options.dim)
    every = heap not in LONGEST_ONLY
    for length in options.lengths if every else options.lengths[-1:]:
        here = {n: f for n, f in made.items() if length <= LIMITS[device].get(n, length)}
        rows, records = draw(options, length, dtype), []
        for part in (FORWARD, BOTH):
            records += timed(options, rows, here, part, heap)
        if device == "cpu" and every and dtype == torch.float32:
            low = [x.bfloat16() for x in rows]
            records += timed(options, low, {f"{name}, bfloat16": made[name]}, FORWARD, heap)
        yield records
    if every:
        few = {n: f for n, f in made.items() if n in (name, FAST, FAST_TUNED)}
        yield timed(options, draw(options, max(options.lengths), dtype, heads=1), few, ONE_HEAD, heap)


def crossover(options, dtype: torch.dtype) -> list[dict]:
    """Milliseconds forward of softmax and of the compiled kernels by head width and length."""
    records = []
    for dim in CROSSOVER_DIMS:
        made = implementations(options.device, dtype, {}, dim)
        pair = {n: made[n] for n in (ours(options.device, dtype, dim), SOFTMAX)}
        for length in CROSSOVER_LENGTHS[:2] if options.quick else CROSSOVER_LENGTHS:
            times = measure(calls(pair, FORWARD, draw(options, length, dtype, dim)), options.device, 5)
            records.append({"dim": dim, "length": length, "ms": {n: min(t) for n, t in times.items()}})
    return records


def memory(options, dtype: torch.dtype) -> dict[str, float]:
    """Peak of forward + backward above the inputs at 8,192, in tensors like q, by implementation."""
    made = implementations(options.device, dtype, {}, options.dim)
    q, k, v = draw(options, 8192, dtype)
    grad, found = torch.rand_like(v), {}
    exact_frees()
    for name in dict.fromkeys((ours(options.device, dtype, options.dim), "ours, torch")):
        call = forward_and_backward(made[name], q, k, v, grad)
        call()
        peak_memory = PeakMemory(options.device)
        call()
        found[name] = peak_memory.bytes() / (q.numel() * q.element_size())
    usual_frees()
    return found


def decoding(options, dtype: torch.dtype) -> list[dict]:
    """Milliseconds per token at positions 1,024 and 32,768: the step, and softmax over a cache of keys."""
    device, shape = options.device, (options.batch, options.heads)
    q, k, v = (torch.rand(*shape, options.dim, device=device).to(dtype) for _ in range(3))
    functions, repeats = {}, 200
    for position in (1024, 32768):
        keys, values = (torch.rand(*shape, position, options.dim, device=device).to(dtype) for _ in "kv")
        _, state = causal_linear_attention(keys, keys, values, return_state=True)

        def cached(keys=keys, values=values):
            torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values)

        def step(state=state):
            for _ in range(repeats):
                _, state = causal_linear_attention_step(q, k, v, state)

        def operator(state=state):
            for _ in range(repeats):
                _, state = operators.step(q, k, v, state, False, 0.0)

        functions |= {("step", position): step, (CACHE, position): cached}
        if select_backend("auto", device, dtype) == "cpp":
            functions["step, the operator itself", position] = operator
    records = []
    with torch.no_grad():
        found = measure(functions, device, options.rounds, ENOUGH_MS / options.quicker)
        for (name, position), times in found.items():
            calls = 1 if name == CACHE else repeats
            record = {"part": DECODING, "heap": "", "length": position, "name": name}
            records.append(record | {"ms": [x / calls for x in times]})
    return records


def with_heap(name: str) -> dict[str, str]:
    """The environment with one setting of the heap."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "THP_"))}
    return known | HEAPS[name]


def run_heap(options, heap: str) -> list[dict]:
    """`costs` with one setting of the heap, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "records.json"
        part = ["--only-heap", heap, str(target)]
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], *part]
        status = subprocess.run(command, env=with_heap(heap)).returncode
        if status < 0:
            raise UserError(f"the system ended the part with the heap {heap} (signal {-status}); free memory")
        if status:
            sys.exit(status)  # it has said why
        return json.loads(target.read_text(encoding="utf-8"))


def floors(records: list[dict], peak: dict[str, float], device: str) -> None:
    """Adds the fraction of the machine's measured peak that bounds: operations on a CPU, bytes on a GPU."""
    unit = "GB/s" if device == "cuda" else "GF/s"
    for record in records:
        if unit in record:
            record["of floor"] = record[unit] / peak[unit]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/operator_cost.py", __doc__)
    add_out_dir(parser, f"{shown_path(BENCHMARKS)}/operator_DEVICE, with --quick operator_quick there")
    add_device(parser)
    parser.add_argument(
        "--dtype", choices=DTYPES, default=DTYPES[0], help="of the inputs; default: %(default)s"
    )
    for name, default, text in (
        ("--batch", 1, "rows of the batch"),
        ("--heads", 8, "heads"),
        ("--dim", 64, "width per head"),
        ("--rounds", 7, "times that everything is measured, at least"),
    ):
        parser.add_argument(
            name, type=count, default=default, metavar="N", help=f"{text}; default: {default}"
        )
    lengths = ", ".join(f"{length:,}" for length in LENGTHS)
    parser.add_argument(
        "--lengths", type=count, nargs="+", metavar="N", help=f"lengths to measure; default: {lengths}"
    )
    parser.add_argument(
        "--shapes", choices=("fla",), help="fla's published shapes instead of batch, heads, width and lengths"
    )
    parser.add_argument(
        "--decay", action="store_true", help="measure decays instead, with 32 heads and 4,096 positions"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="published shapes, default lengths and other work 64 times smaller: tries a small machine",
    )
    parser.add_argument(
        "--threads", type=count, metavar="N", help="torch's threads; default: torch's own choice"
    )
    for name, text in (
        (
            "--fast-transformers",
            "build of pytorch-fast-transformers to compare with; default: the installed one",
        ),
        ("--fast-transformers-tuned", "a second build to compare with"),
    ):
        parser.add_argument(name, type=Path, metavar="FOLDER", help=text)
    # One part, in its own process.
    parser.add_argument("--only-heap", nargs=2, metavar=("HEAP", "JSON"), help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(argv)
    options.quicker = QUICKER if options.quick else 1
    options.lengths = options.lengths or [length // options.quicker for length in LENGTHS]
    for build in filter(None, (options.fast_transformers, options.fast_transformers_tuned)):
        check_build(build)
    return options


def main() -> None:
    options = parse_arguments()
    options.device = choose_device(options.device)
    name = f"operator_{'quick' if options.quick else options.device}"
    options.out = out_dir(options) or BENCHMARKS / name
    record = "anchor" if options.shapes else "decay" if options.decay else "operator_cost"
    path = options.out / f"{record}.json"
    check_output(
        path, operator_decay.RESULT if options.decay else RESULT, beside=(".md", ".png"), makes_folder=True
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    if options.shapes:
        return anchor(options, [x.scaled(options.quicker) for x in shapes()] if options.quick else shapes())
    if options.decay:
        if options.device == "cpu" and os.environ != (kept := with_heap("kept")):
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], kept)
        return operator_decay.decay_costs(options)
    if options.only_heap:
        records = [x for found in costs(options, dtype, options.only_heap[0]) for x in found]
        return write_json(Path(options.only_heap[1]), records)
    left_out = ("out", "out_dir", "only_heap", "quicker", "fast_transformers", "fast_transformers_tuned")
    result = {
        "environment": environment(options.device),
        "settings": {k: v for k, v in vars(options).items() if k not in left_out},
        "main": ours(options.device, dtype, options.dim),
        "heaps": HEAPS,
        "peak": peak(options.device, dtype, options.quicker),
        "records": [],
    }
    heaps = [name for name in HEAPS if not (options.quick and name in LONGEST_ONLY)]
    found = costs(options, dtype, "") if options.device == "cuda" else (run_heap(options, x) for x in heaps)
    for records in found:
        result["records"] += records
        floors(result["records"], result["peak"], options.device)
        write_json(path, result)
    result["records"] += decoding(options, dtype)
    result["crossover"] = crossover(options, dtype)
    result["memory"] = memory(options, dtype)
    result["goals"] = goals(result)
    write_json(path, result)
    plot(result, path.with_suffix(".png"))
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
