"""The results of operator_cost.py as tables and a picture, and its goals."""

import statistics
from pathlib import Path

from benchmarks.operator_peers import BOTH, FAST, FAST_TUNED, FLA, FORWARD, QUADRATIC, SOFTMAX
from lab.methods import OF_MECHANISMS
from lab.publish.costs import Goal, goal_table
from lab.publish.plots import GREY, PALEST, Curve, on_scale, plot_curves, tint
from lab.publish.tables import markdown_table, ran_on, spread, where

ONE_HEAD = "one head, forward + backward"
DECODING, CACHE = "decoding", "softmax over a cache"
OURS = {"ours, cpp": 0, "ours, cuda": 0, "ours, triton": 0.2, "ours, torch": 0.4}
PEERS = (FAST_TUNED, FAST, FLA, QUADRATIC)
COLORS = {name: on_scale(place) for name, place in OURS.items()}
COLORS |= {name: tint(GREY, PALEST * number / (len(PEERS) - 1)) for number, name in enumerate(PEERS)}
COLORS[SOFTMAX] = OF_MECHANISMS["softmax"].color
"""One for each implementation in every picture: ours on a scale, others grey; another precision is a tint."""


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
    """Time against length, forward and forward + backward, medians, the heap kept."""
    settings, panels = result["settings"], []
    for part in (FORWARD, BOTH):
        records = [r for r in result["records"] if r["part"] == part and r["heap"] in ("kept", "")]
        names = list(dict.fromkeys(r["name"] for r in records))
        curves = []
        for name in names:
            plain = next((known for known in COLORS if name.startswith(known)), QUADRATIC)
            color = COLORS[plain] if name == plain else tint(COLORS[plain], PALEST)
            mine = sorted((r for r in records if r["name"] == name), key=lambda r: r["length"])
            times = [statistics.median(r["ms"]) for r in mine]
            if len(times) > 1:  # one point is not a curve; the table has it
                curves.append(Curve(name, color, [r["length"] for r in mine], times))
        panels.append((part, "length of the sequence, tokens", "milliseconds", curves))
    asks = "How long do the forms of causal attention take at each length?"
    note = (
        f"Causal attention, batch {settings['batch']}, {settings['heads']} heads of {settings['dim']}, "
        f"{settings['dtype']} where no other dtype is named; medians. {ran_on([result['environment']])}"
    )
    plot_curves(path, panels, asks=asks, note=note)


def goals(result: dict) -> list[list[str]]:
    """The goals that this run could measure, as rows of a table.

    Ratios of implementations are of medians; with the byte floor the best time is compared.
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
