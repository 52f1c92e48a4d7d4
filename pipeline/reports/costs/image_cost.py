"""From the records of `image_cost.py` to images per second, ratios beside the paper's, and a plot."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.methods import ATTENTIONS
from pipeline.papers import read_table
from pipeline.reports.costs.lm_cost import measured_on
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table
from pipeline.sequence_methods import SEQUENCE_METHODS

Results = dict[str, Any]
Record = dict[str, Any]
RECOMPUTE, CACHE, LINEAR = "softmax-recompute", "softmax", "elu"
THROUGHPUT = {"mnist": "linear_04a_mnist_throughput", "cifar10": "linear_04b_cifar10_throughput"}
LATENCY = {"mnist": "linear_05a_mnist_latency", "cifar10": "linear_05b_cifar10_latency"}
TITLES = {"mnist": "MNIST, 784 bytes", "cifar10": "CIFAR-10, 3,072 bytes", "tiny": "tiny images, 16 bytes"}


@dataclass(frozen=True)
class Way:
    """An attention and how it draws the next byte; `paper` is the row in the paper's tables, or "".

    `recompute`: it runs the whole prefix again for every byte.
    """

    label: str
    color: str
    paper: str = ""
    style: str = "-"
    recompute: bool = False


def _again(name: str, label: str, paper: str) -> Way:
    """The attention `name` without a state."""
    return Way(f"{label}, prefix again", SEQUENCE_METHODS[name].color, paper, ":", recompute=True)


def _state(name: str, paper: str = "") -> Way:
    method = SEQUENCE_METHODS[name]
    return Way(f"{method.label}, state", method.color, paper, method.style)


WAYS = {
    RECOMPUTE: _again("softmax", "softmax", "softmax"),
    CACHE: Way("softmax, cache", SEQUENCE_METHODS["softmax"].color, "stateful-softmax", "--"),
    "elu": _state("elu", "linear"),
    "t1": Way("TransNormer T1, state", ATTENTIONS["transnormer_t1"].color),
    "t2": Way("TransNormer T2, state", ATTENTIONS["transnormer_t2"].color),
    "lln_diag": _state("lln_diag"),
    "reformer-1-recompute": _again("reformer-1", "Reformer, 1 round", "lsh-1"),
    "reformer-4-recompute": _again("reformer-4", "Reformer, 4 rounds", "lsh-4"),
    "reformer-1": _state("reformer-1"),
    "reformer-4": _state("reformer-4"),
}
"""By the name on the command line, in the order of the tables."""


def records(results: Results, images: str, name: str) -> dict[int, Record]:
    """The records of a way by batch size."""
    found = (r for r in results["records"] if (r["images"], r["architecture"]) == (images, name))
    return {record["batch"]: record for record in found}


def speeds(results: Results, images: str, name: str) -> dict[int, float]:
    """Images per second by batch size, where it was measured."""
    known = records(results, images, name)
    return {batch: batch / r["seconds"] for batch, r in sorted(known.items()) if r["status"] == "ok"}


def speed_table(results: Results, images: str) -> str:
    """Images per second by batch size; with * where estimated."""
    batches = results["settings"]["batches"]
    rows = []
    for name in results["settings"]["architectures"]:
        known = records(results, images, name)
        rows.append([WAYS[name].label, *(_speed(known.get(batch)) for batch in batches)])
    title = f"{TITLES[images]}: images per second, by images at once (*: estimated; –: not tried):"
    return f"{title}\n\n" + markdown_table(["", *(f"{batch:,}" for batch in batches)], rows)


def _speed(record: Record | None) -> str:
    if record is None:
        return "–"
    if record["status"] != "ok":
        return record["status"]
    return f"{record['batch'] / record['seconds']:.3g}{'*' if record['estimated'] else ''}"


def latency_table(results: Results, images: str) -> str:
    """Seconds for one image at batch 1, the paper's on such a device, and both over linear attention's."""
    if images not in LATENCY:
        return ""
    machine = "CPU" if results["settings"]["device"] == "cpu" else "GPU"
    paper = {
        line["method"]: float(line[f"{machine.lower()}_seconds"]) for line in read_table(LATENCY[images])
    }
    ours = {
        name: 1 / found[1]
        for name in results["settings"]["architectures"]
        if 1 in (found := speeds(results, images, name))
    }
    rows = []
    for name, seconds in ours.items():
        theirs = paper.get(WAYS[name].paper)
        rows.append(
            [
                WAYS[name].label,
                f"{seconds:,.3g}" if seconds < 1000 else f"{seconds:,.0f}",
                f"{seconds / ours[LINEAR]:.3g}" if LINEAR in ours else "–",
                *(["–", "–"] if theirs is None else [f"{theirs:,}", f"{theirs / paper['linear']:.3g}"]),
            ]
        )
    if not rows:
        return ""
    header = ["", "one image, s", "× 1+elu", f"paper: one image, s, {machine}", "× linear"]
    title = f"{TITLES[images]}: seconds for one image at batch 1, beside the paper's Table 5:"
    return f"{title}\n\n" + markdown_table(header, rows)


def ratio_table(results: Results, images: str) -> str:
    """Seconds for one image, the best speed, both over softmax's two ways, and the paper's ratios."""
    header = ["", "one image, s", "best images/s", "at once", "peak MiB"]
    header += [f"× {way}, {batch}" for way in ("prefix again", "cache") for batch in ("batch 1", "best")]
    header += ["paper: images/s", "× prefix again", "× cache"]
    rows = []
    for name in results["settings"]["architectures"]:
        known = speeds(results, images, name)
        if not known:
            continue
        best = max(known, key=lambda batch: known[batch])
        peak = records(results, images, name)[best]["peak_bytes"] / 2**20
        own = [
            f"{1 / known[1]:.3g}" if 1 in known else "–",
            f"{known[best]:.3g}",
            f"{best:,}",
            f"{peak:,.0f}",
        ]
        ratios = [
            _over(known, speeds(results, images, other), pick)
            for other in (RECOMPUTE, CACHE)
            for pick in (lambda found: found.get(1), lambda found: max(found.values(), default=None))
        ]
        rows.append([WAYS[name].label, *own, *ratios, *paper_cells(images, WAYS[name].paper)])
    title = f"{TITLES[images]}: speed over that of softmax, at batch 1 and at the best batch of each:"
    return f"{title}\n\n" + markdown_table(header, rows)


Speeds = dict[int, float]


def _over(known: Speeds, other: Speeds, pick: Callable[[Speeds], float | None]) -> str:
    ours, theirs = pick(known), pick(other)
    return "–" if ours is None or theirs is None else f"{ours / theirs:.3g}"


def paper_cells(images: str, row: str) -> list[str]:
    """The paper's images per second and their ratios to its softmax and stateful-softmax."""
    if not row or images not in THROUGHPUT:
        return ["–"] * 3
    found = {line["method"]: float(line["images_per_second"]) for line in read_table(THROUGHPUT[images])}
    ratios = (found[row] / found[name] for name in ("softmax", "stateful-softmax"))
    return [f"{found[row]:g}", *(f"{ratio:,.3g}" if ratio < 1000 else f"{ratio:,.0f}" for ratio in ratios)]


def caption(results: Results) -> str:
    """One paragraph: models, what is timed, what is estimated, machine, day."""
    sizes = results["settings"]["sizes"]
    models = "; ".join(
        f"{TITLES[name]}: {size['layers']} layers of width {size['width']}, {size['heads']} heads"
        for name, size in sizes.items()
    )
    return (
        f"Katharopoulos et al. 2020, section 4.2. {models}; random weights, float32, mixtures of 10 "
        "logistics; wall time of drawing every byte. With the prefix again the time is estimated: the sum "
        "over all lengths of the parabola through forward passes of an eighth, a half and all of the bytes. "
        "Peak memory is that above the weights. The paper's figures are for as many images at once as its "
        "GPU holds, with other code; its softmax with a cache is stateful-softmax, its Reformer runs the "
        f"prefix again. {measured_on(results)}"
    )


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [caption(results)]
    for images in results["settings"]["sizes"]:
        tables = (speed_table, latency_table, ratio_table)
        parts += [text for table in tables if (text := table(results, images))]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Images per second against images at once, a panel for each kind of images."""
    panels = []
    for images in results["settings"]["sizes"]:
        curves = []
        for name in results["settings"]["architectures"]:
            if known := speeds(results, images, name):
                way = WAYS[name]
                curves.append(Curve(way.label, way.color, list(known), list(known.values()), way.style))
        panels.append((TITLES[images], "images at once", "images per second", curves))
    plot_curves(path, panels, note=caption(results), source="benchmarks/image_cost.py")
