"""The results of the copy task as a table and as learning curves."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.files import fingerprint
from pipeline.reports.plots import Curve, plot_curves
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
from pipeline.sequence_methods import SEQUENCE_METHODS

CONVERGED_LOSS, CONVERGED_ACCURACY = 0.01, 0.999
PAPER = (
    "Katharopoulos et al. 2020 (Figure 2, no figures given): linear ends as low as softmax, and below "
    "Reformer's hashing."
)


def read_results(folder: Path) -> list[Result]:
    """The finished runs of scripts/measure_copy.sh in `folder`, in the order of the tables.

    Raises UserError if they differ in preset or flags.
    """
    return read_sweep(folder, lambda result: list(SEQUENCE_METHODS).index(result["method"]))


def converged(result: Result) -> bool:
    """Whether a run has learned to copy."""
    return result["loss_nats"] < CONVERGED_LOSS and result["accuracy"] > CONVERGED_ACCURACY


def write_copy_table(results: Sequence[Result]) -> str:
    """Loss, token accuracy and exact-match rate on test by attention; median (range) over the seeds."""
    header = [
        "",
        "loss, nats",
        "token accuracy, %",
        "exact match, %",
        "exact match, free-running, %",
        "at update",
    ]
    header += ["converged", "training, s"]
    rows = []
    for name, group in by_method(results).items():
        percent = [[100 * r[key] for r in group] for key in ("accuracy", "exact", "free_exact")]
        reached = [update for r in group if (update := first_below(r)) is not None]
        rows.append(
            [
                SEQUENCE_METHODS[name].label,
                spread([r["loss_nats"] for r in group], "{:.4f}"),
                *(spread(values, "{:.1f}") for values in percent),
                spread(reached, "{:,.0f}") if len(reached) == len(group) else "–",
                f"{sum(map(converged, group))} of {len(group)}",
                spread([r["train_seconds"] for r in group], "{:.0f}"),
            ]
        )
    return markdown_table(header, rows) + "\n\n" + "\n".join(notes(results))


def first_below(result: Result) -> int | None:
    """The first update at which the training loss is below that of convergence."""
    return next((int(u) for u, loss in result["curves"]["train"] if loss < CONVERGED_LOSS), None)


def notes(results: Sequence[Result]) -> list[str]:
    """What decides the figures, and what the paper says."""
    first = results[0]
    settings = first["settings"]
    model, task = settings["model"], settings["task"]
    examples = {result["examples"] for result in results}
    return [
        f"Preset {first['preset']}{with_flags(first['flags'])}: length {task['tokens_per_sample']}, "
        f"{model['decoder_layers']} layers of width {model['decoder_embed_dim']}, "
        f"{model['decoder_attention_heads']} heads, {first['updates']:,} updates of "
        f"{settings['dataset']['batch_size']} sequences; {max(examples)} test sequences; "
        f"{over_seeds(results)}.",
        f"Converged: loss below {CONVERGED_LOSS} and more than {CONVERGED_ACCURACY:.1%} token accuracy on "
        "test; at update: the first interval of training with such a loss. Free-running: the sequence and "
        "the separator are given, and each answer is the next input. Every other column has the true prefix.",
        "Reformer is the strictly causal form, its planes drawn again in each update; the paper's sees later "
        "tokens. NormAttention has rotary positions besides the joined ones.",
        f"Paper: {PAPER}",
        measured_on(results, LOADED),
    ]


def plot_copying(results: Sequence[Result], path: Path) -> None:
    """Training loss against updates, a line per attention: the first seed."""
    curves = []
    for result in of_first_seed(results):
        method = SEQUENCE_METHODS[result["method"]]
        updates, losses = zip(*result["curves"]["train"], strict=True)
        curves.append(Curve(method.label, method.color, updates, losses, method.style))
    title = f"Copy task, preset {results[0]['preset']}"
    panel = (title, "updates", "training loss, nats per counted symbol", curves)
    note = f"{first_seed_on(results)} {PAPER}"
    plot_curves(path, [panel], note=note, log=False, markers=False, source=fingerprint(results))
