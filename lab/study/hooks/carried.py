"""Study `carried`: what training with carried state costs or gains, and perplexity by position."""

import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from lab.methods import label_of
from lab.publish.plots import Curve, plot_curves
from lab.publish.tables import grouped, markdown_table
from lab.study.page import looks_of
from lab.study.records import Record, note_of_seed, of_first_seed
from lab.study.schema import Study

READINGS = {"read apart": "apart", "read with state": "carried"}
STYLES = {"apart": "--", "carried": "-"}


def tables(study: Study, records: Sequence[Record]) -> list[str]:
    """The perplexity of each model trained with carried state, divided by that of the same trained apart."""
    rows, alone = [], []
    axes = study.axes
    groups = grouped(records, lambda record: (record["cell"]["model"], record["cell"]["segment"]))
    for model, segment in product(axes["model"].choices, axes["segment"].choices):
        group = groups.get((model, segment), [])
        own = ratio(group, "carried", "apart")
        if own is not None:  # both ways were trained
            alike = [ratio(group, reading, reading) for reading in READINGS.values()]
            shown = [f"{one:.2f}" for one in (*alike, own)]
            rows.append([axes["model"].choices[model].label, segment, *shown])
            alone.append(own)
    if not rows:
        return []
    header = ["trained with state : trained apart", "segment", *READINGS, "each as it was trained"]
    worse = sum(one > 1 for one in alone)
    return [
        markdown_table(header, rows),
        f"Trained and read with carried state, {worse} of {len(alone)} models are worse than the same model "
        f"trained and read apart ({min(alone):.2f} to {max(alone):.2f} times its perplexity).",
    ]


def ratio(records: Sequence[Record], with_state: str, apart: str) -> float | None:
    """The median perplexity of the runs trained with carried state, read `with_state`, to that of the others.

    These are read as `apart` says. None if either way of training is missing.
    """
    middles = []
    for way, reading in (("carried", with_state), ("apart", apart)):
        values = [
            one["found"][reading]["perplexity_per_token"] for one in records if one["cell"]["way"] == way
        ]
        if not values:
            return None
        middles.append(statistics.median(values))
    return middles[0] / middles[1]


def draw_positions(study: Study, records: Sequence[Record], source: str, path: Path) -> None:
    """Perplexity by position with carried state, a panel per segment: the first seed."""
    shown, panels = of_first_seed(records), []
    looks = looks_of([(record["cell"]["model"],) for record in shown])
    colors = {model: color for (model,), (color, _) in looks.items()}
    for segment, group in grouped(shown, lambda one: one["cell"]["segment"]).items():
        curves = [_curve(record, colors[record["cell"]["model"]]) for record in group]
        panels.append((f"Segments of {segment}", "position up to, tokens", "perplexity per token", curves))
    note = f"Trained with carried state (solid) and without (dashed). {note_of_seed(shown)}"
    plot_curves(path, panels, note=note, source=source)


def _curve(record: Record, color: str) -> Curve:
    model, buckets = record["cell"]["model"], record["found"]["carried"]["buckets"]
    x, y = ([bucket[key] for bucket in buckets] for key in ("end", "perplexity_per_token"))
    way = record["cell"]["way"]
    return Curve(label_of(model) if way == "carried" else "", color, x, y, STYLES[way])


DRAWS = {"positions": draw_positions}
