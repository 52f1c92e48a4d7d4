#!/usr/bin/env python3
"""Speed of causal linear attention against what else computes it or stands in its place.

Forward, forward + backward and the decoding step of the compiled kernels, of the PyTorch path, of the
quadratic product, of scaled_dot_product_attention (softmax) and, where installed, of
pytorch-fast-transformers and flash-linear-attention: one run, rounds interleaved, medians with their range.
Writes operator_cost.json and operator_cost.md into OUT_DIR. On a CPU the heap decides much of the time at
long lengths: run it with MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=8589934592 ("heap kept")
and without; the setting is recorded.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.common import CommandLine, environment, markdown_table, spread, write_json  # noqa: E402
from causal_linear_attention import causal_linear_attention, select_backend  # noqa: E402
from scripts.command import run_command  # noqa: E402

LENGTHS = (512, 2048, 8192, 32768)
QUADRATIC_LIMIT = 8192  # beyond, one product takes seconds and gigabytes
# Operations of a forward pass per head and position at chunks of 32, and bytes read and written once.
CHUNK = 32


def implementations(device: str, dtype: torch.dtype) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Name to function of q, k, v; what cannot be imported is left out."""
    found = {}
    compiled = select_backend("auto", device, dtype)
    for name in dict.fromkeys((compiled, "torch")):
        found[f"ours, {name}"] = lambda q, k, v, name=name: causal_linear_attention(q, k, v, backend=name)
    try:
        from fast_transformers.causal_product import causal_dot_product

        if dtype == torch.float32:
            found["fast-transformers"] = causal_dot_product
    except ImportError:
        pass
    if device == "cuda":
        try:
            from fla.ops.linear_attn import chunk_linear_attn

            def fla(q, k, v):
                rows = (x.transpose(1, 2) for x in (q, k, v))
                return chunk_linear_attn(*rows, scale=1.0, normalize=False)[0].transpose(1, 2)

            found["flash-linear-attention"] = fla
        except ImportError:
            pass

    def softmax(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    found["softmax (SDPA)"] = softmax
    found["quadratic"] = lambda q, k, v: (q @ k.transpose(-2, -1)).tril() @ v
    return found


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(functions: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds a call, `rounds` times each, in turns, after one call that does not count."""
    times = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            start = clock(device)
            function()
            if turn:
                times[name].append((clock(device) - start) * 1e3)
    return times


def forward_and_backward(function, q, k, v, grad):
    def run():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def peak(device: str, dtype: torch.dtype) -> dict[str, float]:
    """The machine's own measure: GF/s of a matrix product and GB/s of a copy, best of several."""
    n = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    product = min(measure({"x": lambda: a @ b}, device, 5)["x"])
    x = torch.empty(2**28 if device == "cuda" else 2**25, device=device)
    y = torch.empty_like(x)
    copy = min(measure({"x": lambda: y.copy_(x)}, device, 5)["x"])
    return {"GF/s": 2 * n**3 / product / 1e6, "GB/s": 2 * x.numel() * 4 / copy / 1e6}


def costs(options, dtype: torch.dtype) -> list[dict]:
    records = []
    device, batch, heads, dim = options.device, options.batch, options.heads, options.dim
    for length in options.lengths:
        q, k, v, grad = (torch.rand(batch, heads, length, dim, device=device).to(dtype) for _ in range(4))
        made = implementations(device, dtype)
        if length > QUADRATIC_LIMIT:
            made = {name: f for name, f in made.items() if name not in ("quadratic", "softmax (SDPA)")}
        parts = {
            "forward": {n: lambda f=f, x=(q, k, v): f(*x) for n, f in made.items()},
            "forward + backward": {n: forward_and_backward(f, q, k, v, grad) for n, f in made.items()},
        }
        for part, functions in parts.items():
            print(f"{part}, N = {length}", file=sys.stderr, flush=True)
            work = batch * heads * length * (4 * dim * dim + 2 * CHUNK * dim)
            moved = 4 * batch * heads * length * dim * q.element_size()
            for name, times in measure(functions, device, options.rounds).items():
                record = {"part": part, "length": length, "name": name, "ms": times}
                if part == "forward" and name.startswith("ours"):
                    middle = statistics.median(times)
                    record |= {"GF/s": work / middle / 1e6, "GB/s": moved / middle / 1e6}
                records.append(record)
    return records


def decoding(options, dtype: torch.dtype) -> list[dict]:
    """Microseconds a token at positions 1,024 and 32,768: the step, and a cache of keys with softmax."""
    from causal_linear_attention import causal_linear_attention_step, operators

    device, shape = options.device, (options.batch, options.heads)
    q, k, v = (torch.rand(*shape, options.dim, device=device).to(dtype) for _ in range(3))
    records, repeats = [], 200
    for position in (1024, 32768):
        keys, values = (torch.rand(*shape, position, options.dim, device=device).to(dtype) for _ in "kv")
        _, state = causal_linear_attention(keys, keys, values, return_state=True)

        def cached(keys=keys, values=values):
            torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values)

        def step(state=state):
            for _ in range(repeats):
                causal_linear_attention_step(q, k, v, state)

        functions = {"step": step, "softmax over a cache": cached}
        if select_backend("auto", device, dtype) == "cpp":

            def operator(state=state):
                for _ in range(repeats):
                    operators.step(q, k, v, state, False, 0.0)

            functions["step, the operator itself"] = operator
        with torch.no_grad():
            for name, times in measure(functions, device, options.rounds).items():
                calls = 1 if "cache" in name else repeats
                record = {"part": "decoding", "length": position, "name": name}
                records.append(record | {"ms": [x / calls for x in times]})
    return records


def goals(records: list[dict], device: str) -> list[tuple[str, str, str]]:
    """(goal, measured, met or not) for what this run measured."""
    middle = {(r["part"], r["length"], r["name"]): statistics.median(r["ms"]) for r in records}
    rows = []

    def ratio(goal, above, below, least):
        if above in middle and below in middle:
            value = middle[above] / middle[below]
            rows.append((f"{goal}: at least {least}", f"{value:.2f}", "met" if value >= least else "not met"))

    ours = f"ours, {'cuda' if device == 'cuda' else 'cpp'}"
    for part in ("forward", "forward + backward"):
        for length in sorted({r["length"] for r in records}):
            peer = (part, length, "fast-transformers")
            ratio(f"{part}, N = {length}: times fast-transformers", peer, (part, length, ours), 4.5)
            peer = (part, length, "flash-linear-attention")
            ratio(f"{part}, N = {length}: times flash-linear-attention", peer, (part, length, ours), 2)
    for length, least in ((8192, 12), (16384, 24)):
        if device == "cuda":
            peer = ("forward", length, "softmax (SDPA)")
            ratio(f"forward, N = {length}: times softmax", peer, ("forward", length, ours), least)
    for name, least in (("step, the operator itself", 1000), ("step", 100)):
        peer = ("decoding", 32768, "softmax over a cache")
        ratio(f"decoding at 32,768, {name}: times softmax", peer, ("decoding", 32768, name), least)
    short, long = ("decoding", 1024, "step"), ("decoding", 32768, "step")
    if short in middle:
        value = middle[long] / middle[short]
        verdict = "met" if value <= 1.05 else "not met"
        rows.append(("decoding at 32,768 over 1,024: at most 1.05", f"{value:.2f}", verdict))
    return rows


def report(result: dict) -> str:
    pieces = []
    names = list(dict.fromkeys(r["name"] for r in result["records"]))
    for part in ("forward", "forward + backward", "decoding"):
        records = [r for r in result["records"] if r["part"] == part]
        lengths = sorted({r["length"] for r in records})
        cells = {(r["name"], r["length"]): spread(r["ms"], "{:.3f}") for r in records}
        here = [n for n in names if any(n == r["name"] for r in records)]
        rows = [[n, *(cells.get((n, x), "–") for x in lengths)] for n in here]
        pieces.append(f"{part}, milliseconds\n\n" + markdown_table(["N", *map(str, lengths)], rows))
    fraction, rows = result["peak"], []
    for r in (r for r in result["records"] if "GF/s" in r):
        row = [r["name"], str(r["length"])]
        for unit in ("GF/s", "GB/s"):
            row += [f"{r[unit]:.1f}", f"{r[unit] / fraction[unit]:.2f}"]
        rows.append(row)
    header = ["forward", "N", "GF/s", "of a matrix product", "GB/s", "of a copy"]
    pieces.append(markdown_table(header, rows))
    pieces.append(markdown_table(["goal", "measured", ""], [list(x) for x in result["goals"]]))
    return "\n\n".join(pieces) + "\n"


def main() -> None:
    parser = CommandLine(__doc__)
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU is available")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
    records = costs(options, dtype) + decoding(options, dtype)
    result = {
        "environment": environment(options.device),
        "settings": {k: v for k, v in vars(options).items() if k != "out_dir"},
        "peak": peak(options.device, dtype),
        "records": records,
        "goals": goals(records, options.device),
    }
    write_json(options.out_dir / "operator_cost.json", result)
    text = report(result)
    (options.out_dir / "operator_cost.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    run_command(main)
