"""Tables and plot of operator_cost.json."""

from pathlib import Path

from pipeline.reports.costs.operator_goals import BOTH, DECODING, FORWARD, ONE_HEAD, SOFTMAX
from pipeline.reports.tables import markdown_table, spread, where

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


def report(result: dict) -> str:
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
