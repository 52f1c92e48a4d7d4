"""Language models trained with and without carried state: a table, and perplexity by position."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.files import fingerprint
from pipeline.methods import LANGUAGE_MODELS
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.sweeps import (
    Result,
    first_seed_on,
    measured_on,
    of_first_seed,
    over_seeds,
    read_sweep,
    with_flags,
)
from pipeline.reports.tables import markdown_table, spread

WAYS = {"apart": "samples apart", "carried": "carried state"}
STYLES = {"apart": "--", "carried": "-"}
SINUSOIDAL = (
    "The models add sinusoidal positions ({}): trained on samples apart, they have seen those of one sample "
    "alone, and read with state they meet positions up to a stream's length."
)


def read_carried(folder: Path) -> list[Result]:
    """The finished runs of scripts/measure_carried.sh in `folder`, in the order of the tables.

    Raises UserError if they differ in flags or data.
    """
    names = list(LANGUAGE_MODELS)
    return read_sweep(
        folder,
        lambda x: (names.index(x["method"]), x["segment"], x["way"]),
        lambda x: (x["flags"], x["data"]),
        "*/*/seed*.json",
    )


def groups(results: Sequence[Result]) -> dict[tuple[str, int, str], list[Result]]:
    """The seeds of each model, segment and way of training."""
    found: dict[tuple[str, int, str], list[Result]] = {}
    for result in results:
        found.setdefault((result["method"], result["segment"], result["way"]), []).append(result)
    return found


def write_carried_table(results: Sequence[Result]) -> str:
    """Perplexities on test, evaluated without and with carried state, and by position with it."""
    found = groups(results)
    ends = sorted({(b["first"], b["end"]) for result in results for b in result["carried"]["buckets"]})
    header = ["", "segment", "trained with", "read apart", "read with state"]
    header += [f"{first:,}–{end - 1:,}" for first, end in ends]
    rows = []
    for (name, segment, way), group in found.items():
        by_place = [
            [b["perplexity_per_token"] for r in group for b in r["carried"]["buckets"] if b["first"] == first]
            for first, _ in ends
        ]
        rows.append(
            [
                LANGUAGE_MODELS[name].label,
                f"{segment:,}",
                WAYS[way],
                *(spread([r[read]["perplexity_per_token"] for r in group], "{:.1f}") for read in WAYS),
                *(spread(values, "{:.1f}") if values else "–" for values in by_place),
            ]
        )
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes(results))


def notes(results: Sequence[Result]) -> list[str]:
    """What decides the figures."""
    first = results[0]
    carried, model = first["carried"], first["settings"]["model"]
    far = sorted({LANGUAGE_MODELS[r["method"]].label for r in results if r["carried"]["remark"]})
    return [
        f"Perplexity per sentencepiece token of WikiText-2's test split, {over_seeds(results)}. "
        "Read apart: in samples of the training's length. Read with state: "
        f"{carried['streams']} streams of {carried['longest']:,} tokens, each from end to end; the columns "
        "on the right are its perplexities by position in a stream.",
        f"Setting: configs/wikitext2{with_flags(first['flags'])}, width {model['decoder_embed_dim']}, "
        f"{first['updates']:,} updates of {first['tokens_per_update']:,} tokens. No paper has these figures.",
        *([SINUSOIDAL.format(", ".join(far))] if far else []),
        measured_on(results),
    ]


def plot_carried(results: Sequence[Result], path: Path) -> None:
    """Perplexity by position with carried state, a panel per segment: the first seed."""
    shown = of_first_seed(results)
    panels = []
    for segment in sorted({result["segment"] for result in results}):
        curves = []
        for result in shown:
            if result["segment"] == segment:
                method, carried = LANGUAGE_MODELS[result["method"]], result["carried"]
                ends = [bucket["end"] for bucket in carried["buckets"]]
                values = [bucket["perplexity_per_token"] for bucket in carried["buckets"]]
                label = method.label if result["way"] == "carried" else ""
                curves.append(Curve(label, method.color, ends, values, STYLES[result["way"]]))
        panels.append((f"Segments of {segment:,}", "position up to, tokens", "perplexity per token", curves))
    note = f"Trained with carried state (solid) and without (dashed). {first_seed_on(results)}"
    plot_curves(path, panels, note=note, source=fingerprint(results))
