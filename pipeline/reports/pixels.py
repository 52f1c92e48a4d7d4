"""The results of images byte by byte as a table and as a picture of samples."""

from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from pipeline.files import fingerprint
from pipeline.papers import read_table
from pipeline.reports.plots import save_figure
from pipeline.reports.sweeps import (
    LOADED,
    Result,
    by_method,
    first_seed_on,
    measured_on,
    of_first_seed,
    over_seeds,
    read_sweep,
    with_flags,
)
from pipeline.reports.tables import markdown_table, spread
from pipeline.sequence_methods import PIXEL_METHODS

PAPER = {
    "digits": "linear_01_mnist",
    "mnist": "linear_01_mnist",
    "cifar10": "linear_02_cifar10",
}
PAPER_IMAGES = {"linear_01_mnist": "MNIST", "linear_02_cifar10": "CIFAR-10"}
PAPER_ROWS = {"softmax": "softmax", "linear": "linear", "lsh": "lsh-1"}
OURS = (
    "Reformer is the strictly causal form; initial values and the last checkpoint are this project's choice"
)
DIFFERENCES = {
    "digits": "other images (8 x 8, 17 levels), a far smaller model, 50 epochs",
    "mnist": OURS,
    "cifar10": OURS,
}
WAYS = ("drawn", "completed")


def read_results(folder: Path) -> list[Result]:
    """The finished runs of scripts/measure_images.sh in `folder`, in the order of the tables.

    Raises UserError if they differ in preset or flags.
    """
    names = list(PIXEL_METHODS)
    return read_sweep(folder, lambda result: (names.index(result["method"]), result["seed"]))


def write_pixel_table(results: Sequence[Result]) -> str:
    """Bits per dimension by attention, median (range) over the seeds, beside the paper's; notes."""
    first = results[0]
    table = PAPER[first["preset"]]
    paper = {row["method"]: row["bits_per_dim"] for row in read_table(table)}
    header = ["bits per dimension", *first["bits_per_dimension"], f"paper: {PAPER_IMAGES[table]}"]
    header += ["parameters", "training, s"]
    rows = []
    for name, group in by_method(results).items():
        rows.append(
            [
                PIXEL_METHODS[name].label,
                *(spread([r["bits_per_dimension"][x] for r in group], "{:.3f}") for x in first["images"]),
                paper.get(PAPER_ROWS.get(name, ""), "–"),
                f"{group[0]['parameters']:,}",
                spread([r["train_seconds"] for r in group], "{:.0f}"),
            ]
        )
    for name, bits in first["without_a_model"].items():
        rows.append([name, *["–"] * (len(first["images"]) - 1), f"{bits:.3f}", *["–"] * 3])
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes(results))


def notes(results: Sequence[Result]) -> list[str]:
    """What decides the figures, and how they differ from the paper's."""
    first = results[0]
    model, shape = first["settings"]["model"], first["shape"]
    unverified = " (NOT the original files)" if first["original_files"] is False else ""
    sizes = ", ".join(f"{count:,} of {split}" for split, count in first["images"].items())
    return [
        f"Preset {first['preset']}{with_flags(first['flags'])}: {first['corpus']}{unverified}, "
        f"{' x '.join(map(str, shape))} bytes of {first['levels']} levels; images: {sizes}; "
        f"{model['decoder_layers']} layers of width {model['decoder_embed_dim']}, "
        f"{model['decoder_attention_heads']} heads, {first['updates']:,} updates of "
        f"{first['settings']['dataset']['batch_size']} images, last checkpoint; "
        f"{over_seeds(results)}. The lower rows are frequencies counted on train.",
        "Differences from the paper (Katharopoulos et al. 2020, section 4.2): "
        f"{DIFFERENCES[first['preset']]}.",
        measured_on(results, LOADED),
    ]


def plot_pixels(results: Sequence[Result], path: Path) -> None:
    """Images that each attention draws and completes, a row per attention: the first seed."""
    shown = of_first_seed(results)
    figure, axes = plt.subplots(len(shown) + 1, 2, figsize=(11, 0.55 * len(shown) + 1.3), squeeze=False)
    show_row(axes[0, 1], shown[0], "test images", "test images")
    axes[0, 0].axis("off")
    for row, result in zip(axes[1:], shown, strict=True):
        for axis, way in zip(row, WAYS, strict=True):
            show_row(axis, result, way, PIXEL_METHODS[result["method"]].label if way == WAYS[0] else "")
    axes[1, 0].set_title("drawn", loc="left", fontsize=11)
    axes[1, 1].set_title("upper half given", loc="left", fontsize=11)
    save_figure(figure, path, first_seed_on(results), len(shown) + 1, fingerprint(results))


def show_row(axis: Axes, result: Result, which: str, label: str) -> None:
    """The images of a result side by side, a gap between them."""
    height, width, channels = result["shape"]
    levels = np.frombuffer(b64decode(result["pictures"][which]), np.uint8)
    images = levels.reshape(-1, height, width, channels) / (result["levels"] - 1)
    gap = np.ones((len(images), height, 1 + width // 16, channels))
    strip = np.concatenate([images, gap], 2).transpose(1, 0, 2, 3).reshape(height, -1, channels)
    axis.imshow(strip.squeeze(-1) if channels == 1 else strip, cmap="gray", vmin=0, vmax=1)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    axis.set_ylabel(label, rotation=0, ha="right", va="center")
