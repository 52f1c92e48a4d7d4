"""The peers of the operator: every installed implementation of causal linear attention, the softmax attention
and quadratic product that it replaces, and the times that others publish.

`anchor` measures the shapes of flash-linear-attention, of which Helion publishes both libraries' times,
beside the time of moving every tensor once.
"""

import csv
import importlib.util
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring import ENOUGH_MS, forward_and_backward, measure, peak
from benchmarks.run import write_tables
from causal_linear_attention import causal_linear_attention, select_backend
from lab.errors import UserError
from lab.files import ROOT, write_json
from lab.provenance import environment
from lab.publish.tables import markdown_table, spread, where

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
SOFTMAX, QUADRATIC = "softmax (SDPA)", "quadratic"
FAST, FAST_TUNED = "fast-transformers", "fast-transformers, tuned build"
FLA = "flash-linear-attention"
FORWARD, BOTH = "forward", "forward + backward"
PUBLISHED = ROOT / "results" / "peers" / "linear_attention_h100.csv"
TITLES = {"fla": "flash-linear-attention, published (H100)", "helion": "Helion, published (H100)"}
TENSORS = {FORWARD: 4, BOTH: 11}
"""Tensors of q's size that are at least read or written: q, k, v and out; for both passes, also q, k and v
again and the four gradients."""
# Above these lengths a call takes seconds on a CPU, and more memory than a GPU has.
LIMITS = {"cpu": {SOFTMAX: 8192, QUADRATIC: 2048}, "cuda": {QUADRATIC: 4096}}
CAUSAL_PRODUCT = Path("fast_transformers", "causal_product")


def ours(device: str, dtype: torch.dtype, dim: int) -> str:
    """The name of the rows of "auto" for heads of `dim` columns: kernels, else PyTorch."""
    return f"ours, {select_backend('auto', device, dtype, dim)}"


def implementations(
    device: str, dtype: torch.dtype, builds: dict[str, Path | None], dim: int, quadratic: bool = True
) -> dict[str, Function]:
    """Name to function of q, k, v of `dim` columns, in the layout of `own_layout`.

    `builds` are folders of fast-transformers; None is the installed one. Without `quadratic`, only what takes
    linear time.
    """
    found = {}
    for name in _backends(device, dtype, dim):
        found[f"ours, {name}"] = lambda q, k, v, name=name: causal_linear_attention(q, k, v, backend=name)
    if dtype == torch.float32:
        for name, folder in builds.items():
            if (function := fast_transformers(folder)) is not None:
                found[name] = function
    if device == "cuda" and (function := flash_linear_attention()) is not None:
        found[FLA] = function
    if not quadratic:
        return found
    found[SOFTMAX] = lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    found[QUADRATIC] = lambda q, k, v: (q @ k.transpose(-2, -1)).tril() @ v
    return found


def _backends(device: str, dtype: torch.dtype, dim: int) -> list[str]:
    """Ours that run there, the one that "auto" takes first."""
    names = [select_backend("auto", device, dtype, dim)]
    for name in ("cuda", "triton") if device == "cuda" else ():
        with suppress(ValueError):  # it says why that one does not run
            names.append(select_backend(name, device, dtype, dim))
    return list(dict.fromkeys([*names, "torch"]))


def check_build(folder: Path) -> None:
    """UserError unless `folder` may hold a build of fast-transformers."""
    if not (init := folder / CAUSAL_PRODUCT / "__init__.py").is_file():
        raise UserError(
            f"{folder} holds no fast-transformers ({init} is missing); name a folder with a build"
        )


def fast_transformers(folder: Path | None) -> Function | None:
    """fast-transformers' causal product, as installed (None if it is not) or from a folder."""
    if folder is None:
        try:
            return importlib.import_module("fast_transformers.causal_product").causal_dot_product
        except ImportError:
            return None
    # A separate name: a second module of the same name would run the first one's compiled code.
    package = folder.resolve() / CAUSAL_PRODUCT
    name, init = f"fast_transformers_{len(sys.modules)}", package / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[str(package)])
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        raise UserError(f"{folder} holds no fast-transformers that can be imported ({error})") from None
    return module.causal_dot_product


def flash_linear_attention() -> Function | None:
    """flash-linear-attention's chunked kernel of `(B, N, H, D)`, None if it is not installed."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError:
        return None
    return lambda q, k, v: chunk_linear_attn(q, k, v, scale=1.0, normalize=False)[0]


def own_layout(name: str, x: Tensor) -> Tensor:
    """`x: (B, H, N, D)` in the implementation's layout: fla would copy any but `(B, N, H, D)` first."""
    return x.transpose(1, 2).contiguous() if name == FLA else x


def calls(functions: dict[str, Function], part: str, inputs: Sequence[Tensor]) -> dict[str, Callable]:
    """A call of each function on `inputs`, q, k, v and the gradient of the output, each in its own layout."""
    made: dict[str, Callable] = {}
    for name, function in functions.items():
        own = [own_layout(name, x) for x in inputs]
        made[name] = partial(function, *own[:3]) if part == FORWARD else forward_and_backward(function, *own)
    return made


@dataclass(frozen=True)
class Shape:
    """Shape of q, k and v, and published milliseconds on an H100 in bfloat16 by (part, implementation)."""

    batch: int
    length: int
    heads: int
    dim: int
    published: dict[tuple[str, str], float]

    @property
    def title(self) -> str:
        """The name that its publishers give it."""
        return f"B{self.batch} T{self.length} H{self.heads} D{self.dim}"

    def bytes(self, part: str, size: int) -> int:
        """The bytes that the forward or both passes move at least, with numbers of `size` bytes."""
        return TENSORS[part] * self.batch * self.length * self.heads * self.dim * size

    def scaled(self, by: int) -> "Shape":
        """One row of the batch, two heads, `by` times shorter; of this nothing is published."""
        return Shape(1, max(1, self.length // by), 2, self.dim, {})


def shapes() -> list[Shape]:
    """The shapes of `PUBLISHED`."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return [_shape(row) for row in csv.DictReader(file)]


def _shape(row: dict[str, str]) -> Shape:
    columns = {FORWARD: "forward", BOTH: "forward_backward"}
    published = {
        (part, name): float(row[f"{name}_{column}_ms"])
        for part, column in columns.items()
        for name in ("helion", "fla")
    }
    return Shape(*(int(row[x]) for x in ("batch", "length", "heads", "dim")), published)


def anchor(options, wanted: list[Shape]) -> None:
    """Measure the published shapes; write anchor.json and anchor.md after each."""
    dtype, device = torch.bfloat16, options.device
    result = {
        "environment": environment(device),
        "peak": peak(device, dtype, options.quicker),
        "rounds": options.rounds,
        "records": [],
    }
    path = options.out / "anchor.json"
    for shape in wanted:
        size = (shape.batch, shape.heads, shape.length, shape.dim)
        inputs = [torch.rand(size, device=device).to(dtype) for _ in range(4)]
        functions = implementations(device, dtype, {}, shape.dim, quadratic=False)
        for part in (FORWARD, BOTH):
            print(f"{part}, {shape.title}", file=sys.stderr, flush=True)
            floor = shape.bytes(part, dtype.itemsize) / result["peak"]["GB/s"] / 1e6
            published = {name: ms for (which, name), ms in shape.published.items() if which == part}
            here = {"part": part, "shape": shape.title, "floor_ms": floor, "published_ms": published}
            todo = calls(functions, part, inputs)
            for name, times in measure(todo, device, options.rounds, ENOUGH_MS / options.quicker).items():
                result["records"].append({**here, "name": name, "ms": times})
        write_json(path, result)
    write_tables(path, anchor_report(result))


def anchor_report(result: dict[str, Any]) -> str:
    """A table for each part: milliseconds, and their ratio to the time of moving every tensor once."""
    record, records = result["environment"], result["records"]
    copy = f"{result['peak']['GB/s']:,.0f} GB/s of a copy"
    pieces = [f"{where(record)}; torch {record['versions']['torch']}, bfloat16; byte floor at {copy}"]
    for part in dict.fromkeys(r["part"] for r in records):
        rows = []
        for shape in dict.fromkeys(r["shape"] for r in records):
            here = [r for r in records if r["part"] == part and r["shape"] == shape]
            rows += _rows(shape, here)
        header = ["shape", part, "ms", "byte floor, ms", "times the floor"]
        pieces.append(markdown_table(header, rows))
    return "\n\n".join(pieces) + "\n"


def _rows(shape: str, records: list[dict[str, Any]]) -> list[list[str]]:
    floor = records[0]["floor_ms"]
    rows = []
    for r in records:
        times = f"{statistics.median(r['ms']) / floor:.2f}"
        rows.append([shape, r["name"], spread(r["ms"], "{:.3f}"), f"{floor:.3f}", times])
    for name, ms in records[0]["published_ms"].items():
        rows.append([shape, TITLES[name], f"{ms:.3f}", "–", "–"])  # of another machine
    return rows
