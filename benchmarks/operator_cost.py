#!/usr/bin/env python3
"""Speed of causal linear attention, compared with other implementations and softmax.

Forward, forward + backward and the decoding step of the compiled kernels, of the PyTorch path, of the
quadratic product, of scaled_dot_product_attention (softmax) and, where installed, of
pytorch-fast-transformers and flash-linear-attention: one run, rounds interleaved, medians with their range.
Also: a single head, bfloat16, peak memory, and the sequence length above which linear beats softmax.
Writes operator_cost.json, .md and (with matplotlib) .png into the folder of --out. On a CPU the heap decides
much of the time at long lengths, so everything is measured with freed memory kept ("heap kept") and the
longest length again with the C library's defaults ("heap stock"), without and with huge pages, each in its
own process.

--shapes fla measures instead, in bfloat16, the six shapes for which flash-linear-attention and Helion publish
times on an H100 (results/peers), with the time that moving each tensor once would take: anchor.json and .md.
On a GPU results are written after every length or shape.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/operator_cost.py")

import torch

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
    FLA,
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
from benchmarks.run import choose_device, write_tables
from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    operators,
    select_backend,
)
from pipeline.console import Parser, add_device, add_out_dir, count, out_dir, run_command
from pipeline.errors import UserError
from pipeline.files import BENCHMARKS, shown_path, write_json
from pipeline.outputs import check_output, json_with
from pipeline.provenance import environment
from pipeline.reports.costs import Goal, goal_table
from pipeline.reports.tables import markdown_table, spread, where

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
CHUNK = 16  # of the compiled CPU kernels, in the count of operations
ONE_HEAD = "one head, forward + backward"
DECODING, CACHE = "decoding", "softmax over a cache"
COLORS = ("tab:blue", "tab:cyan", "tab:orange", "tab:red", "tab:green", "tab:purple", "tab:brown", "0.4")


def timed(options, q, k, v, functions, part: str, heap: str) -> list[dict]:
    """Records of one part at one length; the compiled kernels' with rates."""
    *_, length, dim = q.shape
    todo = calls(functions, part, (q, k, v, torch.rand_like(v)))
    print(f"{part}, N = {length}", file=sys.stderr, flush=True)
    both = part != FORWARD
    # A backward pass does about 2.5 times the forward's operations.
    work = q.numel() * (4 * dim + 2 * CHUNK) * (3.5 if both else 1)
    moved = TENSORS[BOTH if both else FORWARD] * q.numel() * q.element_size()
    records = []
    for name, times in measure(todo, options.device, options.rounds, ENOUGH_MS).items():
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
    made, device = implementations(options.device, dtype, builds), options.device
    every = heap not in LONGEST_ONLY
    for length in options.lengths if every else options.lengths[-1:]:
        here = {n: f for n, f in made.items() if length <= LIMITS[device].get(n, length)}
        rows, records = draw(options, length, dtype), []
        for part in (FORWARD, BOTH):
            records += timed(options, *rows, here, part, heap)
        if device == "cpu" and every and dtype == torch.float32:
            name, low = ours(device), [x.bfloat16() for x in rows]
            found = timed(options, *low, {f"{name}, bfloat16": made[name]}, FORWARD, heap)
            records += found
        yield records
    if every:
        few = {n: f for n, f in made.items() if n in (ours(device, dtype), FAST, FAST_TUNED)}
        yield timed(options, *draw(options, max(options.lengths), dtype, heads=1), few, ONE_HEAD, heap)


def crossover(options, dtype: torch.dtype) -> list[dict]:
    """Milliseconds forward of softmax and of the compiled kernels by head width and length."""
    made = implementations(options.device, dtype, {})
    pair = {n: made[n] for n in (ours(options.device, dtype), SOFTMAX)}
    records = []
    for dim in CROSSOVER_DIMS:
        for length in CROSSOVER_LENGTHS[:2] if options.quick else CROSSOVER_LENGTHS:
            times = measure(calls(pair, FORWARD, draw(options, length, dtype, dim)), options.device, 5)
            records.append({"dim": dim, "length": length, "ms": {n: min(t) for n, t in times.items()}})
    return records


def memory(options, dtype: torch.dtype) -> dict[str, float]:
    """Peak of forward + backward above the inputs at 8,192, in tensors like q, by implementation."""
    made = implementations(options.device, dtype, {})
    q, k, v = draw(options, 8192, dtype)
    grad, found = torch.rand_like(v), {}
    exact_frees()
    for name in dict.fromkeys((ours(options.device, dtype), "ours, torch")):
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
        for (name, position), times in measure(functions, device, options.rounds, ENOUGH_MS).items():
            calls = 1 if name == CACHE else repeats
            record = {"part": DECODING, "heap": "", "length": position, "name": name}
            records.append(record | {"ms": [x / calls for x in times]})
    return records


def run_heap(options, heap: str) -> list[dict]:
    """`costs` with one setting of the heap, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "records.json"
        known = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "THP_"))}
        part = ["--only-heap", heap, str(target)]
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], *part]
        status = subprocess.run(command, env=known | HEAPS[heap]).returncode
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


def crossover_table(result: dict) -> str:
    """By head width: from which length on linear attention beats softmax, and by how much at the end."""
    rows = []
    for dim in sorted({x["dim"] for x in result["crossover"]}):
        here = sorted((x for x in result["crossover"] if x["dim"] == dim), key=lambda x: x["length"])
        ratios = [
            x["ms"][SOFTMAX] / next(ms for name, ms in x["ms"].items() if name != SOFTMAX) for x in here
        ]
        # The last length at which softmax still wins decides; before it a win may be chance.
        lost = max((i for i, ratio in enumerate(ratios) if ratio < 1), default=-1)
        if lost + 1 == len(here):
            start = f"beyond {here[-1]['length']:,}"
        else:
            start = f"{'≤ ' if lost < 0 else ''}{here[lost + 1]['length']:,}"
        rows.append([str(dim), start, f"{ratios[-1]:.1f}"])
    longest = max(x["length"] for x in result["crossover"])
    return markdown_table(["head width", "faster from N", f"speed-up over softmax at N = {longest:,}"], rows)


def markdown(result: dict) -> str:
    """All tables as Markdown."""
    record = result["environment"]
    pieces = [f"{where(record)}; torch {record['versions']['torch']}, {result['settings']['dtype']}"]
    for part in (FORWARD, BOTH, ONE_HEAD, DECODING):
        for heap in dict.fromkeys(r["heap"] for r in result["records"] if r["part"] == part):
            pieces.append(_times(result, part, heap))
    pieces += [_rates(result), "Linear against softmax, forward\n\n" + crossover_table(result)]
    memory = [[name, f"{tensors:.2f}"] for name, tensors in result["memory"].items()]
    pieces.append(
        markdown_table(["forward + backward, N = 8,192", "peak above the inputs, in tensors"], memory)
    )
    pieces.append(goal_table(result["goals"]))
    return "\n\n".join(pieces) + "\n"


def _times(result: dict, part: str, heap: str) -> str:
    records = [r for r in result["records"] if r["part"] == part and r["heap"] == heap]
    lengths = sorted({r["length"] for r in records})
    cells = {(r["name"], r["length"]): spread(r["ms"], "{:.3f}") for r in records}
    names = list(dict.fromkeys(r["name"] for r in records))
    rows = [[n, *(cells.get((n, x), "–") for x in lengths)] for n in names]
    title = f"{part}, milliseconds" + (f", heap {heap}" if heap else "")
    return f"{title}\n\n" + markdown_table(["N", *(f"{x:,}" for x in lengths)], rows)


def _rates(result: dict) -> str:
    rows = []
    for r in result["records"]:
        if "GF/s" in r:
            row = [r["name"], r["part"] + (f", heap {r['heap']}" if r["heap"] else ""), f"{r['length']:,}"]
            row += [f"{r['GF/s']:.0f}", f"{r['GF/s'] / result['peak']['GF/s']:.2f}"]
            rows.append([*row, f"{r['GB/s']:.1f}", f"{r['GB/s'] / result['peak']['GB/s']:.2f}"])
    return markdown_table(
        ["best of the run", "", "N", "GF/s", "of a matrix product", "GB/s", "of a copy"], rows
    )


def plot(result: dict, path: Path) -> None:
    """Time against length, forward and forward + backward, medians, the heap kept. Needs matplotlib."""
    from pipeline.reports.plots import Curve, plot_curves

    panels = []
    for part in (FORWARD, BOTH):
        records = [r for r in result["records"] if r["part"] == part and r["heap"] in ("kept", "")]
        names = list(dict.fromkeys(r["name"] for r in records))
        curves = []
        for name, color in zip(names, COLORS, strict=False):
            mine = sorted((r for r in records if r["name"] == name), key=lambda r: r["length"])
            times = [statistics.median(r["ms"]) for r in mine]
            curves.append(Curve(name, color, [r["length"] for r in mine], times))
        panels.append((part, "length", "milliseconds", curves))
    plot_curves(path, panels, note=f"Medians; {where(result['environment'])}.")


def goals(result: dict) -> list[list[str]]:
    """What this run could measure of the goals, as rows of a table; ratios are of medians.

    `result["main"]` is the name of the rows that the goals are for.
    """
    device, main = result["settings"]["device"], result["main"]
    middle = {
        (r["part"], r["heap"], r["length"], r["name"]): statistics.median(r["ms"]) for r in result["records"]
    }
    rows: list[list[str]] = []

    def ratio(
        figure: str, above: tuple, below: tuple, bound: float, at_least: bool = True, digits: int = 2
    ) -> None:
        if above in middle and below in middle:
            rows.append(Goal(figure, middle[above] / middle[below], bound, at_least).row(digits))

    for part, heap, length in sorted({key[:3] for key in middle}):
        place = f"{part}, N = {length:,}" + (f", heap {heap}" if heap else "")
        here = (part, heap, length)
        if part in (FORWARD, BOTH):
            least = 2.8 if heap == "stock" else 4.5
            ratio(f"{place}: times {FAST}", (*here, FAST), (*here, main), least)
            ratio(f"{place}: times {FAST_TUNED}", (*here, FAST_TUNED), (*here, main), 2)
            ratio(f"{place}: times {FLA}", (*here, FLA), (*here, main), 2)
        if part == ONE_HEAD:
            ratio(f"{place}: times {FAST}", (*here, FAST), (*here, main), 7)
        if part == FORWARD and device == "cpu":
            ratio(f"{place}: PyTorch path, times {FAST}", (*here, FAST), (*here, "ours, torch"), 1.4)
            ratio(f"{place}: bfloat16, times float32", (*here, main), (*here, f"{main}, bfloat16"), 1)
        if part == FORWARD and device == "cuda" and length in (8192, 16384):
            least = 12 if length == 8192 else 24
            ratio(f"{place}: times {SOFTMAX}", (*here, SOFTMAX), (*here, main), least)
    for r in result["records"]:
        if device == "cuda" and r["name"] == main and "of floor" in r and r["length"] >= 8192:
            figure = f"{r['part']}, N = {r['length']:,}: times the byte floor"
            rows.append(Goal(figure, 1 / r["of floor"], 1.5 if r["part"] == FORWARD else 2.0).row())
    early, late = (DECODING, "", 1024), (DECODING, "", 32768)
    for name, least in (("step, the operator itself", 1000), ("step", 100)):
        ratio(f"decoding at 32,768, {name}: times {CACHE}", (*late, CACHE), (*late, name), least, digits=0)
    ratio("decoding at 32,768 over 1,024", (*late, "step"), (*early, "step"), 1.05, at_least=False)
    if main in result["memory"]:
        figure = "peak memory above the inputs, forward + backward, in tensors"
        most = 4.1 if device == "cpu" else 4.3  # the states that the CUDA kernels keep
        rows.append(Goal(figure, result["memory"][main], most).row())
    return rows


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/operator_cost.py", __doc__)
    add_out_dir(parser, f"{shown_path(BENCHMARKS)}/operator_DEVICE, with --quick operator_quick there")
    add_device(parser)
    dtypes = ("float32", "bfloat16", "float16")
    parser.add_argument(
        "--dtype", choices=dtypes, default="float32", help="type of the inputs; default: %(default)s"
    )
    for name, default, text in (
        ("--batch", 1, "rows of the batch"),
        ("--heads", 8, "heads"),
        ("--dim", 64, "width of a head"),
        ("--rounds", 7, "times that everything is measured, at least"),
    ):
        parser.add_argument(
            name, type=count, default=default, metavar="N", help=f"{text}; default: {default}"
        )
    lengths = ", ".join(f"{length:,}" for length in LENGTHS)
    parser.add_argument(
        "--lengths",
        type=count,
        nargs="+",
        metavar="N",
        help=f"sequence lengths to measure; default: {lengths}",
    )
    parser.add_argument(
        "--shapes", choices=("fla",), help="the published shapes, instead of batch, heads, width and lengths"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="published shapes and default lengths 64 times shorter, to try it on a small machine",
    )
    parser.add_argument(
        "--threads", type=count, metavar="N", help="torch's threads; default: torch's own choice"
    )
    parser.add_argument(
        "--fast-transformers",
        type=Path,
        metavar="FOLDER",
        help="build of pytorch-fast-transformers to compare with; default: the installed one",
    )
    parser.add_argument(
        "--fast-transformers-tuned", type=Path, metavar="FOLDER", help="a second build to compare with"
    )
    # One part, in a process of its own.
    parser.add_argument("--only-heap", nargs=2, metavar=("HEAP", "JSON"), help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(argv)
    options.lengths = options.lengths or [length // (QUICKER if options.quick else 1) for length in LENGTHS]
    for build in filter(None, (options.fast_transformers, options.fast_transformers_tuned)):
        check_build(build)
    return options


def main() -> None:
    options = parse_arguments()
    options.device = choose_device(options.device)
    name = f"operator_{'quick' if options.quick else options.device}"
    options.out = out_dir(options) or BENCHMARKS / name
    path = options.out / ("anchor.json" if options.shapes else "operator_cost.json")
    check_output(path, RESULT, beside=(".md", ".png"), makes_folder=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    if options.shapes:
        return anchor(options, [x.scaled(QUICKER) for x in shapes()] if options.quick else shapes())
    if options.only_heap:
        records = [x for found in costs(options, dtype, options.only_heap[0]) for x in found]
        return write_json(Path(options.only_heap[1]), records)
    left_out = ("out", "out_dir", "only_heap", "fast_transformers", "fast_transformers_tuned")
    result = {
        "environment": environment(options.device),
        "settings": {k: v for k, v in vars(options).items() if k not in left_out},
        "main": ours(options.device),
        "heaps": HEAPS,
        "peak": peak(options.device, dtype),
        "records": [],
    }
    found = costs(options, dtype, "") if options.device == "cuda" else (run_heap(options, x) for x in HEAPS)
    for records in found:
        result["records"] += records
        floors(result["records"], result["peak"], options.device)
        write_json(path, result)
    result["records"] += decoding(options, dtype)
    result["crossover"] = crossover(options, dtype)
    result["memory"] = memory(options, dtype)
    result["goals"] = goals(result)
    write_json(path, result)
    if find_spec("matplotlib"):
        plot(result, path.with_suffix(".png"))
    else:
        print("matplotlib is not installed: no operator_cost.png", file=sys.stderr)
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
