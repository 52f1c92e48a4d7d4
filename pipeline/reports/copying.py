"""The results of the copy task as a table and as learning curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import fingerprint, read_json
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table, spread, where
from pipeline.sequence_methods import SEQUENCE_METHODS

CONVERGED_LOSS, CONVERGED_ACCURACY = 0.01, 0.999
PAPER = (
    "Katharopoulos et al. 2020 (Figure 2, no figures given): linear ends as low as softmax, and below "
    "Reformer's hashing."
)
Result = dict[str, Any]


def read_results(folder: Path) -> list[Result]:
    """The finished runs of scripts/measure_copy.sh in `folder`, in the order of the tables.

    Raises UserError if they differ in preset or flags.
    """
    results = [read_json(path) for path in sorted(folder.glob("*/seed*.json"))]
    if len({(result["preset"], tuple(result["flags"])) for result in results}) > 1:
        raise UserError(f"{folder} holds runs of different settings; give each setting its own --out")
    return sorted(results, key=lambda result: list(SEQUENCE_METHODS).index(result["method"]))


def converged(result: Result) -> bool:
    """Whether a run has learned to copy."""
    return result["loss_nats"] < CONVERGED_LOSS and result["accuracy"] > CONVERGED_ACCURACY


def write_copy_table(results: Sequence[Result]) -> str:
    """Loss and shares of right answers on test by attention; median (range) over the seeds."""
    header = [
        "",
        "loss, nats",
        "right, %",
        "sequences without a mistake, %",
        "running freely, %",
        "at update",
    ]
    header += ["converged", "training, s"]
    rows = []
    for name, method in SEQUENCE_METHODS.items():
        group = [result for result in results if result["method"] == name]
        if not group:
            continue
        percent = [[100 * r[key] for r in group] for key in ("accuracy", "exact", "free_exact")]
        reached = [update for r in group if (update := first_below(r)) is not None]
        rows.append(
            [
                method.label,
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
    settings, flags = first["settings"], " ".join(first["flags"])
    model, task = settings["model"], settings["task"]
    examples = {result["examples"] for result in results}
    machines = sorted({f"{where(r['environment'])}, {r['environment']['date']}" for r in results})
    commits = ", ".join(sorted({r["environment"]["commit"] for r in results}))
    seeds = ", ".join(map(str, sorted({r["seed"] for r in results})))
    return [
        f"Preset {first['preset']}{f' with {flags}' if flags else ''}: length {task['tokens_per_sample']}, "
        f"{model['decoder_layers']} layers of width {model['decoder_embed_dim']}, "
        f"{model['decoder_attention_heads']} heads, {first['updates']:,} updates of "
        f"{settings['dataset']['batch_size']} sequences; {max(examples)} test sequences; median (lowest to "
        f"highest) over the seeds {seeds}.",
        f"Converged: loss below {CONVERGED_LOSS} and more than {CONVERGED_ACCURACY:.1%} right on test; "
        "at update: the first interval of training with such a loss. Running freely: the sequence and the "
        "separator are given, and each answer is the next input. Every other column has the true prefix.",
        "Reformer is the strictly causal form, its planes drawn again in each update; the paper's sees later "
        "tokens. NormAttention has rotary positions besides the joined ones.",
        f"Paper: {PAPER}",
        f"Measured on {'; '.join(machines)} (commit {commits}); training times are those of a machine that "
        "may have done other work.",
    ]


def plot_copying(results: Sequence[Result], path: Path) -> None:
    """Training loss against updates, a line per attention: the first seed."""
    seed = min(result["seed"] for result in results)
    curves = []
    for result in results:
        if result["seed"] == seed:
            method = SEQUENCE_METHODS[result["method"]]
            updates, losses = zip(*result["curves"]["train"], strict=True)
            curves.append(Curve(method.label, method.color, updates, losses, method.style))
    title = f"Copy task, preset {results[0]['preset']}"
    panel = (title, "updates", "training loss, nats per counted symbol", curves)
    note = f"Seed {seed}, {where(results[0]['environment'])}, {results[0]['environment']['date']}. {PAPER}"
    plot_curves(path, [panel], note=note, log=False, markers=False, source=fingerprint(results))
