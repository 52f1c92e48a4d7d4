"""Images that models of pixels draw and complete."""

from base64 import b64decode
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from lab.publish.plots import save_figure
from lab.publish.tables import Section, note_of_seed, of_first_seed, seed_of
from lab.store import Record

WAYS = {"drawn": "drawn", "completed": "upper half given"}
TRUE = "test images"
ASKS = "What do images look like that each model draws, or completes below the given upper half?"


def draw_samples(section: Section, source: str, path: Path) -> None:
    """Images that each attention draws and completes, a row per attention: the first seed."""
    seed = seed_of(of_first_seed(section.records)[0])
    rows = {label: [one for one in group if seed_of(one) == seed] for label, group in section.rows.items()}
    shown = {label: group[0] for label, group in rows.items() if group}
    figure, axes = plt.subplots(len(shown) + 1, 2, figsize=(11, 0.55 * len(shown) + 1.3), squeeze=False)
    first = next(iter(shown.values()))
    show_row(axes[0, 1], first, TRUE, TRUE)
    axes[0, 0].axis("off")
    for row, (label, record) in zip(axes[1:], shown.items(), strict=True):
        for axis, way in zip(row, WAYS, strict=True):
            show_row(axis, record, way, label if axis is row[0] else "")
    for axis, title in zip(axes[1], WAYS.values(), strict=True):
        axis.set_title(title, loc="left", fontsize=11)
    save_figure(figure, path, ASKS, note_of_seed(list(shown.values())), source)


def show_row(axis: Axes, record: Record, which: str, label: str) -> None:
    """The images of a record side by side, a gap between them."""
    height, width, channels = (record["data"][name] for name in ("height", "width", "channels"))
    levels = np.frombuffer(b64decode(record["found"]["pictures"][which]), np.uint8)
    images = levels.reshape(-1, height, width, channels) / (record["data"]["levels"] - 1)
    gap = np.ones((len(images), height, 1 + width // 16, channels))
    strip = np.concatenate([images, gap], 2).transpose(1, 0, 2, 3).reshape(height, -1, channels)
    axis.imshow(strip.squeeze(-1) if channels == 1 else strip, cmap="gray", vmin=0, vmax=1)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    axis.set_ylabel(label, rotation=0, ha="right", va="center")


PICTURES = {"samples": draw_samples}
