"""Tables, plot and goals of operator_cost.json: each goal is met, not met, or not measured."""

import statistics
from pathlib import Path

from pipeline.reports.tables import markdown_table, spread, where

SOFTMAX, QUADRATIC = "softmax (SDPA)", "quadratic"
FAST, FAST_TUNED = "fast-transformers", "fast-transformers, tuned build"
FLA = "flash-linear-attention"
FORWARD, BOTH = "forward", "forward + backward"
ONE_HEAD = "one head, forward + backward"
DECODING, CACHE = "decoding", "softmax over a cache"
Row = tuple[str, str, str]
COLORS = ("tab:blue", "tab:cyan", "tab:orange", "tab:red", "tab:green", "tab:purple", "tab:brown", "0.4")


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
    pieces.append(markdown_table(["goal", "measured", ""], result["goals"]))
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
            times = [sorted(r["ms"])[len(r["ms"]) // 2] for r in mine]
            curves.append(Curve(name, color, [r["length"] for r in mine], times))
        panels.append((part, "length", "milliseconds", curves))
    plot_curves(path, panels, note=f"Medians; {where(result['environment'])}.")


def goals(result: dict) -> list[Row]:
    """(goal, measured, verdict) for what this run could measure; ratios are of medians.

    `result["main"]` is the name of the rows that the goals are for.
    """
    device, main = result["settings"]["device"], result["main"]
    middle = {
        (r["part"], r["heap"], r["length"], r["name"]): statistics.median(r["ms"]) for r in result["records"]
    }
    rows: list[Row] = []

    def add(goal: str, value: float, bound: float, at_least: bool = True) -> None:
        met = value >= bound if at_least else value <= bound
        sign = "at least" if at_least else "at most"
        rows.append((f"{goal}: {sign} {bound:g}", f"{value:.2f}", "met" if met else "not met"))

    def ratio(goal: str, above: tuple, below: tuple, bound: float) -> None:
        if above in middle and below in middle:
            add(goal, middle[above] / middle[below], bound)

    for part, heap, length in sorted({key[:3] for key in middle}):
        where = f"{part}, N = {length:,}" + (f", heap {heap}" if heap else "")
        here = (part, heap, length)
        if part in (FORWARD, BOTH):
            least = 2.8 if heap == "stock" else 4.5
            ratio(f"{where}: times {FAST}", (*here, FAST), (*here, main), least)
            ratio(f"{where}: times {FAST_TUNED}", (*here, FAST_TUNED), (*here, main), 2)
            ratio(f"{where}: times {FLA}", (*here, FLA), (*here, main), 2)
        if part == ONE_HEAD:
            ratio(f"{where}: times {FAST}", (*here, FAST), (*here, main), 7)
        if part == FORWARD and device == "cpu":
            ratio(f"{where}: PyTorch path, times {FAST}", (*here, FAST), (*here, "ours, torch"), 1.4)
            ratio(f"{where}: bfloat16, times float32", (*here, main), (*here, f"{main}, bfloat16"), 1)
        if part == FORWARD and device == "cuda" and length in (8192, 16384):
            least = 12 if length == 8192 else 24
            ratio(f"{where}: times {SOFTMAX}", (*here, SOFTMAX), (*here, main), least)
    rows += _floors(result, main) + _decoding(middle)
    for name, tensors in result["memory"].items():
        if name == main:
            most = 4.1 if device == "cpu" else 4.3  # the states that the CUDA kernels keep
            add("peak memory above the inputs, forward + backward, in tensors", tensors, most, at_least=False)
    return rows


def _floors(result: dict, main: str) -> list[Row]:
    """On a GPU: the time against that of moving every tensor once."""
    if result["settings"]["device"] != "cuda":
        return []
    rows = []
    for r in result["records"]:
        if r["name"] == main and "of floor" in r and r["length"] >= 8192:
            bound, value = 1.5 if r["part"] == FORWARD else 2.0, 1 / r["of floor"]
            goal = f"{r['part']}, N = {r['length']:,}: times the byte floor: at most {bound:g}"
            rows.append((goal, f"{value:.2f}", "met" if value <= bound else "not met"))
    return rows


def _decoding(middle: dict) -> list[Row]:
    found = {(length, name): ms for (part, _, length, name), ms in middle.items() if part == DECODING}
    rows = []
    for name, least in (("step, the operator itself", 1000), ("step", 100)):
        if (32768, name) in found:
            value = found[32768, CACHE] / found[32768, name]
            goal = f"decoding at 32,768, {name}: times {CACHE}: at least {least}"
            rows.append((goal, f"{value:.0f}", "met" if value >= least else "not met"))
    if (32768, "step") in found:
        value = found[32768, "step"] / found[1024, "step"]
        goal = "decoding at 32,768 over 1,024: at most 1.05"
        rows.append((goal, f"{value:.2f}", "met" if value <= 1.05 else "not met"))
    return rows
