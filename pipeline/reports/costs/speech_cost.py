"""From the records of `speech_cost.py` to a table beside the paper's seconds per epoch, and a plot."""

from pathlib import Path
from typing import Any

from pipeline.methods import Size
from pipeline.papers import read_table
from pipeline.reports.costs.lm_cost import Cell, cell, measured_on
from pipeline.reports.plots import Bubble, plot_bubbles, plot_curves
from pipeline.reports.tables import markdown_table, spread
from pipeline.sequence_methods import SEQUENCE_METHODS

Results = dict[str, Any]
COMPARED = {"softmax": "softmax", "reformer-4": "lsh-4", "elu": "linear"}
"""The paper's name of each attention that is measured."""


def found(results: Results, name: str) -> Cell | None:
    """What was measured of an attention."""
    [longest] = results["settings"]["lengths"]
    return cell(results, "training", name, longest)


def markdown(results: Results) -> str:
    """The whole report."""
    paper = {row["method"]: float(row["seconds_per_epoch"]) for row in read_table("linear_03_speech")}
    whole = found(results, "softmax")
    rows = []
    for name in results["settings"]["architectures"]:
        known, published = found(results, name), f"{paper[COMPARED[name]] / paper['softmax']:.2f}"
        label = SEQUENCE_METHODS[name].label
        if known is None or known.status != "ok":
            rows.append([label, "–" if known is None else known.status, "–", "–", published])
            continue
        relative = "–" if whole is None or whole.status != "ok" else f"{known.median / whole.median:.2f}"
        rows.append([label, spread(known.seconds), f"{max(known.peaks) / 2**20:,.0f}", relative, published])
    header = ["", "seconds per step, median (range)", "peak memory, MiB", "time over softmax's", "paper"]
    return f"{caption(results)}\n\n{markdown_table(header, rows)}\n"


def caption(results: Results) -> str:
    """One paragraph: model, batch, differences, machine, day."""
    settings = results["settings"]
    [longest], size = settings["lengths"], Size(**settings["size"])
    return (
        f"Speech encoder of Katharopoulos et al. 2020 (section 4.3): {size.layers} layers, width "
        f"{size.width}, {size.heads} heads, bidirectional, CTC over {size.vocabulary} classes, RAdam; "
        f"{settings['utterances']} random utterances a step of {longest // 3:,} frames on average and "
        f"{longest:,} at most. The paper's column is the ratio of its seconds per epoch (Table 3), on a GPU "
        "and with other code. Here softmax is the fused operator where torch has one with dropout. "
        f"{measured_on(results)}"
    )


def plot(results: Results, path: Path) -> None:
    """Time against peak memory, a disc for each attention."""
    bubbles, title = [], "Training step of a speech encoder"
    x_label, y_label = "peak memory, MiB", "seconds"
    for name in results["settings"]["architectures"]:
        known = found(results, name)
        if known is not None and known.status == "ok":
            method, peak = SEQUENCE_METHODS[name], max(known.peaks) / 2**20
            bubbles.append(Bubble(method.label, method.color, peak, known.median, 0.0))
    if bubbles:
        plot_bubbles(path, bubbles, title=title, x_label=x_label, y_label=y_label, note=caption(results))
    else:
        plot_curves(path, [(title, x_label, y_label, [])], note=caption(results))
