#!/usr/bin/env python3
"""How fast images are drawn byte by byte (Katharopoulos et al. 2020, Tables 1, 2, 4 and 5).

Softmax attention that runs the whole prefix again for every byte or keeps a cache, attentions that keep a
state of constant size, and Reformer both ways, at the paper's sizes for MNIST and CIFAR-10 with random
weights; batches of 1, 4, 16, ... until memory or time ends. Every case runs in its own process. Results are
saved after every case: run the same command again to resume. On two cores it takes some hours; the machine
should do nothing else.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/image_cost.py")

import numpy as np
import torch
from torch import nn

from benchmarks.measuring import PeakMemory, timed
from benchmarks.models import SEQUENCE_METHODS, Size, model_config
from benchmarks.run import CostBenchmark
from lab.console import Parser, names, run_command
from lab.methods import ATTENTIONS, Method
from lab.papers import read_table
from lab.publish.costs import Cell, Results, curves, length_table, measured, measured_on, ratio
from lab.publish.plots import plot_curves, tint
from lab.publish.tables import markdown_table, shown

RECOMPUTE, CACHE, LINEAR = "softmax-recompute", "softmax", "elu"
THROUGHPUT = {"mnist": "linear_04a_mnist_throughput", "cifar10": "linear_04b_cifar10_throughput"}
LATENCY = {"mnist": "linear_05a_mnist_latency", "cifar10": "linear_05b_cifar10_latency"}
ASKS = "How many images does each model draw in a second?"
TITLES = {"mnist": "MNIST, 784 bytes", "cifar10": "CIFAR-10, 3,072 bytes", "tiny": "tiny images, 16 bytes"}


@dataclass(frozen=True)
class Way(Method):
    """An attention and its way to draw the next byte; `paper` is the row in the paper's tables, or "".

    `recompute`: it runs the whole prefix again for every byte.
    """

    paper: str = ""
    recompute: bool = False


AGAIN = 0.5
"""The share of white in the colours of models that run the prefix again."""


def _again(name: str, label: str, paper: str) -> Way:
    color = tint(SEQUENCE_METHODS[name].color, AGAIN)
    return Way(f"{label}, prefix again", color, paper=paper, recompute=True)


def _state(name: str, paper: str = "") -> Way:
    method = SEQUENCE_METHODS[name]
    return Way(f"{method.label}, state", method.color, paper=paper)


WAYS = {
    RECOMPUTE: _again("softmax", "softmax", "softmax"),
    CACHE: Way("softmax, cache", SEQUENCE_METHODS["softmax"].color, paper="stateful-softmax"),
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
SIZES = {
    "mnist": Size(layers=8, width=256, heads=8, vocabulary=256),
    "cifar10": Size(layers=16, width=256, heads=8, vocabulary=256),
}
TINY = {"tiny": Size(layers=2, width=16, heads=2, vocabulary=256)}
GROWTH = 4  # of the batch
FULL = {"batches": [GROWTH**n for n in range(8)]}
QUICK = {"batches": [1, 4]}
SHAPES = {"mnist": (256, 28, 28, 1), "cifar10": (256, 32, 32, 3), "tiny": (256, 4, 4, 1)}
# The paper's number of buckets, with the chunks of its code.
LSH = {"reformer_chunk_size": 32, "reformer_buckets": 64}
WARM_UP = 8  # bytes
SHARES = (8, 2, 1)  # of the bytes: the lengths whose forward pass is timed
REPEATS = 3


def settings_of(name: str, size: Size) -> dict[str, Any]:
    """The model's settings for one of `WAYS`, at `size`."""
    from user_dir.models.architectures import TRANSNORMER_LM

    common = {
        "decoder_layers": size.layers,
        "decoder_embed_dim": size.width,
        "decoder_attention_heads": size.heads,
        "decoder_ffn_embed_dim": 4 * size.width,
        "max_target_positions": None,
        **LSH,
    }
    if name in ("t1", "t2"):
        own = {"decoder_norm_position": "pre", "decoder_final_norm": "rmsnorm"}
        return {**common, **TRANSNORMER_LM, **own, "decoder_attention": f"transnormer_{name}"}
    method = SEQUENCE_METHODS[name.removesuffix("-recompute")]
    return {**common, **method.settings, "decoder_attention": method.plan}


def build_image_model(name: str, images: str, size: Size, device: str) -> tuple[nn.Module, Any]:
    """The model in evaluation mode on a device, and its task."""
    from fairseq.models import MODEL_REGISTRY

    from user_dir.tasks.image_data import ImageShape
    from user_dir.tasks.pixels import PixelTask, PixelTaskConfig

    shape = ImageShape(*SHAPES[images])
    task = PixelTask(PixelTaskConfig(data="", tokens_per_sample=shape.dims), shape)
    config = model_config("pixel_linear", **settings_of(name, size))
    model = MODEL_REGISTRY["pixel_linear"].build_model(config, task)
    return model.to(torch.device(device)).eval(), task


def measure_sampling(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds for drawing `batch` images, whether that is an estimate, and the peak memory in bytes.

    "spent_s" is how long the measuring took.
    """
    from lab.measure.pixels import draw, uniforms

    device, batch = case["device"], case["batch"]
    size = Size(**case["sizes"][case["images"]])
    model, task = build_image_model(case["architecture"], case["images"], size, device)
    dims, eos = task.shape.dims, task.dictionary.eos()
    given = torch.zeros(batch, 0, dtype=torch.long, device=device)
    chance = uniforms(1, range(batch), dims).to(device)
    recompute = WAYS[case["architecture"]].recompute
    few = min(WARM_UP, dims)
    draw(model, eos, few, given, chance[:, :few], recompute)
    meter, begin = PeakMemory(device), time.monotonic()
    if recompute:
        seconds = estimated_seconds(model, eos, dims, batch, device)
    else:
        seconds = timed(partial(draw, model, eos, dims, given, chance), device)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": seconds,
        "estimated": recompute,
        "spent_s": time.monotonic() - begin,
        "peak_bytes": meter.bytes(),
    }


@torch.inference_mode()
def estimated_seconds(model: nn.Module, eos: int, dims: int, batch: int, device: str) -> float:
    """Seconds of forward passes over all prefixes of 1 to `dims` bytes, from the times of three lengths."""
    times = {}
    for length in sorted({max(1, dims // share) for share in SHARES}):
        run = partial(model, torch.full((batch, length), eos, device=device))
        times[length] = statistics.median(timed(run, device) for _ in range(REPEATS))
    return sum_of_parabola(times, dims)


def sum_of_parabola(points: dict[int, float], count: int) -> float:
    """The sum over n = 1 to `count` of the parabola through three `points`."""
    coefficients = np.polyfit(list(points), list(points.values()), len(points) - 1)
    return float(np.polyval(coefficients, np.arange(1, count + 1)).sum())


MEASURES = {"sampling": measure_sampling}


def by_images(results: Results) -> Results:
    """The results as tables and curves of costs take them: a kind for each of images, batches for lengths."""
    settings = {**results["settings"], "lengths": results["settings"]["batches"]}
    records = [
        {**r, "kind": r["images"], "length": r["batch"], "step_seconds": [r.get("seconds")]}
        for r in results["records"]
    ]
    return {**results, "settings": settings, "records": records}


def speed(found: Cell) -> float:
    """Images per second."""
    return found.at / found.median


def fastest(cells: dict[int, Cell]) -> Cell | None:
    """The batch with the most images per second, if one was measured."""
    return max(cells.values(), key=speed, default=None)


def speed_table(results: Results, images: str) -> str:
    """Images per second by batch size; with * where estimated."""

    def show(found: Cell) -> str:
        return f"{speed(found):.3g}{'*' if found.records[0]['estimated'] else ''}"

    title = f"{TITLES[images]}: images per second, by images at once (*: estimated; –: not tried):"
    return length_table(results, title, WAYS, show, kind=images)


def latency_table(results: Results, images: str) -> str:
    """Seconds for one image at batch 1, the paper's on such a device, and both over linear attention's."""
    if images not in LATENCY:
        return ""
    machine = "CPU" if results["settings"]["device"] == "cpu" else "GPU"
    paper = {
        line["method"]: float(line[f"{machine.lower()}_seconds"]) for line in read_table(LATENCY[images])
    }
    ours = {
        name: found[1].median
        for name in results["settings"]["architectures"]
        if 1 in (found := measured(results, name, images))
    }
    rows = []
    for name, seconds in ours.items():
        theirs = paper.get(WAYS[name].paper)
        here = f"{seconds:,.3g}" if seconds < 1000 else f"{seconds:,.0f}"
        relative = f"{seconds / ours[LINEAR]:.3g}" if LINEAR in ours else "–"
        published = ["–", "–"] if theirs is None else [f"{theirs:,}", f"{theirs / paper['linear']:.3g}"]
        rows.append([WAYS[name].label, here, relative, *published])
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
        known = measured(results, name, images)
        best = fastest(known)
        if best is None:
            continue
        alone = f"{known[1].median:.3g}" if 1 in known else "–"
        own = [alone, f"{speed(best):.3g}", f"{best.at:,}", f"{best.peak:,.0f}"]
        ratios = []
        for other in (RECOMPUTE, CACHE):
            theirs = measured(results, other, images)
            for above, below in ((known.get(1), theirs.get(1)), (best, fastest(theirs))):
                ratios.append(shown(ratio(above, below, speed), ".3g"))
        rows.append([WAYS[name].label, *own, *ratios, *paper_cells(images, WAYS[name].paper)])
    title = f"{TITLES[images]}: speed relative to softmax, at batch 1 and at the best batch of each:"
    return f"{title}\n\n" + markdown_table(header, rows)


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
    parts, drawn = [caption(results)], by_images(results)
    for images in results["settings"]["sizes"]:
        tables = (speed_table, latency_table, ratio_table)
        parts += [text for table in tables if (text := table(drawn, images))]
    return "\n\n".join(parts) + "\n"


def plot(results: Results, path: Path) -> None:
    """Images per second against images at once, a panel for each kind of images."""
    panels, drawn, names = [], by_images(results), results["settings"]["architectures"]
    for images in results["settings"]["sizes"]:
        lines = curves(drawn, WAYS, names, speed, kind=images)
        panels.append((TITLES[images], "images at once", "images per second", lines))
    plot_curves(path, panels, asks=ASKS, note=caption(results))


def add_options(parser: Parser) -> None:
    """The options that choose what is drawn."""
    parser.add_argument(
        "--images",
        type=names,
        default=list(SIZES),
        help="comma-separated, of mnist and cifar10; one alone has its own file (default: both)",
    )


def complaint(arguments: argparse.Namespace) -> str:
    """The error for unknown images; empty if all are known."""
    unknown = [name for name in arguments.images if name not in SIZES]
    return f"--images names {unknown[0]!r}; choose from {', '.join(SIZES)}" if unknown else ""


def variant(arguments: argparse.Namespace) -> str:
    """One kind of images is kept apart from both."""
    return "" if set(arguments.images) == set(SIZES) else f"_{arguments.images[0]}"


def settings_for(device: str, quick: bool, images: list[str]) -> dict[str, Any]:
    """The settings of a measurement."""
    sizes, plan = (TINY, QUICK) if quick else ({name: SIZES[name] for name in images}, FULL)
    return {"sizes": {name: size.as_dict() for name, size in sizes.items()}, **plan}


def cases_of(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All processes to run; for each kind of images attentions take turns, from small to large batches."""
    return [
        {"kind": "sampling", "architecture": name, "images": images, "batch": batch, "round": 0}
        for images in settings["sizes"]
        for batch in settings["batches"]
        for name in settings["architectures"]
    ]


def is_hopeless(results: dict[str, Any], case: dict[str, Any], time_limit: float) -> bool:
    """Whether a smaller batch could not be measured, or took so long that this one would not end."""
    return any(
        record["status"] != "ok" or record["spent_s"] > time_limit / GROWTH
        for record in results["records"]
        if record["batch"] < case["batch"]
        and all(record[key] == case[key] for key in ("architecture", "images"))
    )


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    WAYS,
    600,
    settings_for,
    markdown,
    plot,
    add_options=add_options,
    complaint=complaint,
    chooses=("images",),
    cases=cases_of,
    hopeless=is_hopeless,
    variant=variant,
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
