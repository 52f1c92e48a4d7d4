"""TransNormer's Fig. 1: accuracy against speed, the paper's figures and ours (`lab.sh figures tradeoff`)."""

from argparse import Namespace
from pathlib import Path

from lab.figures.figure import Content, Figure, chosen, write_once
from lab.files import MEASURED, ROOT, fingerprint, read_json, sha256_of
from lab.methods import ANALYSED, ENCODERS, LINEAR
from lab.papers import read_table
from lab.publish.costs import cell, measured_on, precision
from lab.publish.tables import drawn_from
from lab.store import STORE, stored

COST = MEASURED / "roberta_cost_cpu.json"
LOSSES = ROOT / "results" / "roberta"
THEIR_NAMES = {"Transformer": "softmax"}  # of methods that no other table calls so


def run_tradeoff(options: Namespace) -> None:
    """Two figures, never mixed: the paper's and ours."""
    settings = chosen(options, "speed", "length")
    write_once(options, "paper", settings, lambda: _paper(options))
    tokens = 1024 * int(options.length.removesuffix("K"))
    if options.speed != "train" or not COST.is_file():
        print("tradeoff: our speed is measured for training only, by benchmarks/roberta_cost.py")
        return
    results = read_json(COST)
    if tokens not in results["settings"]["lengths"]:
        print(f"tradeoff: our speed was not measured at {tokens:,} tokens; choose --length 1K, 2K or 4K")
        return
    settings["measured"] = measured_on(results)
    settings["records"] = fingerprint([sha256_of(path) for path in (COST, LOSSES / STORE)])
    write_once(options, "measured", settings, lambda: _measured(results, tokens))


def key_of(name: str) -> str:
    """The key of `methods.ANALYSED` for a name in the paper's tables."""
    if name in THEIR_NAMES:
        return THEIR_NAMES[name]
    return next(key for key, m in ANALYSED.items() if name in (m.transnormer, m.lln, m.label))


def _paper(options: Namespace) -> Content:
    accuracy = {row["model"]: float(row["avg"]) for row in read_table("transnormer_06_lra")}
    column = f"{options.speed}_{options.length.lower()}"
    bubbles = []
    for row in read_table("transnormer_07_lra_speed"):
        if row["model"] in accuracy and row[column] != "-":
            key = key_of(row["model"])
            bubbles.append(_bubble(key, float(row[column]), accuracy[row["model"]]))
    kind = "training" if options.speed == "train" else "inference"
    figure = Figure(
        "Accuracy and speed, as the paper's tables have them",
        x_label=f"{kind} steps per second at {options.length}",
        y_label="mean accuracy on Long Range Arena, %",
        bubbles=bubbles,
    )
    return figure.record(
        "TransNormer, Tables 6 and 7; methods in both. Speed: one A6000, the dtype is not given. In "
        "the paper's figure the size of a circle is memory, which none of its tables has."
    )


def _measured(results: Content, tokens: int) -> Content:
    bubbles, trained = [], []
    for name in ENCODERS:
        record = stored(LOSSES).get(Path(name, "seed1.json"))
        cost = cell(results, "training", f"roberta_{name}", tokens)
        if record is not None and cost is not None and cost.status == "ok":
            key = "elu" if name == LINEAR else name
            loss = record["found"]["valid"]["bits"]
            bubbles.append(_bubble(key, tokens / cost.median, loss))
            trained.append(record)
    figure = Figure(
        "Loss and speed, measured here",
        x_label=f"training tokens per second at {tokens:,} tokens",
        y_label="bits per masked token (WikiText-2, valid)",
        bubbles=bubbles,
    )
    return figure.record(
        "Lower right is better. Loss: the small encoders of results/roberta/README.md, at 128 tokens, most "
        f"on a plateau; {drawn_from(trained)} Speed: {precision(results)}; {measured_on(results)}"
    )


def _bubble(key: str, x: float, y: float) -> Content:
    return {"label": ANALYSED[key].label, "method": key, "x": x, "y": y}
