"""From the records of `packed_cost.py` to tables."""

from typing import Any

from pipeline.reports.tables import markdown_table, spread, where

LABELS = {
    "packed": "packed",
    "loop": "loop over the sequences",
    "padded": "padded to the longest",
    "one sequence": "one sequence of that length",
}
SEQUENCES = {
    "eos": "lines (`--sample-break-mode eos`)",
    "complete_doc": "whole lines of one document (`complete_doc`)",
}


def markdown(result: dict[str, Any]) -> str:
    """The whole report."""
    settings, about = result["settings"], result["environment"]
    head = (
        f"Sequences of `{settings['data']}`. {where(about)}, torch {about['versions']['torch']}, "
        f"{about['date']} (commit {about['commit']})."
    )
    return "\n\n".join([head, _operator(result), _training(result)]) + "\n"


def _operator(result: dict[str, Any]) -> str:
    settings, records = result["settings"], result["records"]
    header = ["", "backend", *(f"{part}, {r['mode']}" for r in records for part in ("forward", "both"))]
    rows = []
    for backend in records[0]["operator"]:
        for way, label in LABELS.items():
            found = [r["operator"][backend] for r in records]
            times = [x[part][way] for x in found for part in ("forward", "forward + backward")]
            rows.append([label, f"`{backend}`", *(spread(x, "{:.1f}") for x in times)])
    return (
        f"The operator with a normaliser on {settings['tokens']:,} positions, {settings['heads']} heads of "
        f"{settings['dim']}, milliseconds, forward and with the backward pass, median (range):\n\n"
        + markdown_table(header, rows)
    )


def _training(result: dict[str, Any]) -> str:
    settings, rows = result["settings"], []
    for r in result["records"]:
        rates = {name: r["steps"]["tokens"] / ms * 1000 for name, ms in r["steps"]["ms"].items()}
        rows.append(
            [
                SEQUENCES[r["mode"]],
                f"{r['sequences']:,}",
                f"{r['mean']:.0f}, {r['longest']}",
                f"{r['padding']:.2%}",
                *(f"{rates[name]:,.0f}" for name in ("padded", "one row")),
            ]
        )
    header = ["", "sequences", "mean and greatest length", "padding in fairseq's batches"]
    header += ["tokens/s, these batches", "tokens/s, one row"]
    return (
        f"Training steps of a small `{settings['architecture']}` on batches of {settings['tokens']:,} "
        f"tokens, padding not counted among the tokens per second:\n\n{markdown_table(header, rows)}"
    )
