"""Language models trained with and without carried state: a table, and perplexity by position."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import fingerprint, read_json
from pipeline.methods import LANGUAGE_MODELS
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table, spread, where

Result = dict[str, Any]
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
    results = [read_json(path) for path in sorted(folder.glob("*/*/seed*.json"))]
    if len({(tuple(result["flags"]), str(result["data"])) for result in results}) > 1:
        raise UserError(f"{folder} holds runs of different settings; give each setting its own --out")
    names = list(LANGUAGE_MODELS)
    return sorted(results, key=lambda x: (names.index(x["method"]), x["segment"], x["way"]))


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
    flags, carried = " ".join(first["flags"]), first["carried"]
    model, seeds = first["settings"]["model"], ", ".join(map(str, sorted({r["seed"] for r in results})))
    machines = sorted({f"{where(r['environment'])}, {r['environment']['date']}" for r in results})
    commits = ", ".join(sorted({r["environment"]["commit"] for r in results}))
    far = sorted({LANGUAGE_MODELS[r["method"]].label for r in results if r["carried"]["remark"]})
    return [
        "Perplexity per sentencepiece token of WikiText-2's test split, median (lowest to highest) over the "
        f"seeds {seeds}. Read apart: in samples of the training's length. Read with state: "
        f"{carried['streams']} streams of {carried['longest']:,} tokens, each from end to end; the columns "
        "on the right are its perplexities by position in a stream.",
        f"Setting: configs/wikitext2{f' with {flags}' if flags else ''}, width {model['decoder_embed_dim']}, "
        f"{first['updates']:,} updates of {first['tokens_per_update']:,} tokens. No paper has these figures.",
        *([SINUSOIDAL.format(", ".join(far))] if far else []),
        f"Measured on {'; '.join(machines)} (commit {commits}).",
    ]


def plot_carried(results: Sequence[Result], path: Path) -> None:
    """Perplexity by position with carried state, a panel per segment: the first seed."""
    seed = min(result["seed"] for result in results)
    panels = []
    for segment in sorted({result["segment"] for result in results}):
        curves = []
        for result in results:
            if (result["segment"], result["seed"]) == (segment, seed):
                method, carried = LANGUAGE_MODELS[result["method"]], result["carried"]
                ends = [bucket["end"] for bucket in carried["buckets"]]
                values = [bucket["perplexity_per_token"] for bucket in carried["buckets"]]
                label = method.label if result["way"] == "carried" else ""
                curves.append(Curve(label, method.color, ends, values, STYLES[result["way"]]))
        panels.append((f"Segments of {segment:,}", "position up to, tokens", "perplexity per token", curves))
    record = results[0]["environment"]
    note = "Trained with carried state (solid) and without (dashed). "
    note += f"Seed {seed}, {where(record)}, {record['date']}."
    plot_curves(path, panels, note=note, source=fingerprint(results))
