"""From the measured language models and the paper's tables to Markdown and learning curves."""

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.files import fingerprint, read_json
from pipeline.methods import LANGUAGE_MODEL_PANELS, LANGUAGE_MODELS, groups, performer_note
from pipeline.papers import read_table
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table, where

Run = dict[str, Any]
NOT_MEASURED = "Not measured yet; `scripts/measure_lm.sh` measures it."
STYLES = ("-", "--", ":", "-.")


def read_runs(folder: Path) -> list[Run]:
    """The measured runs of `folder`, in the order of the architectures and seeds."""
    order = list(LANGUAGE_MODELS)
    runs = [read_json(path) for path in sorted(folder.glob("*.json"))]
    return sorted(runs, key=lambda run: (order.index(run["architecture"]), run["seed"]))


def by_architecture(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each measured architecture."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run["architecture"], []).append(run)
    return groups


def comparison_section(runs: Sequence[Run]) -> str:
    """Settings and perplexities, the paper's Table 4 on the left, what was measured on the right."""
    if not runs:
        return NOT_MEASURED
    rows = [*_setting_rows(runs), *_perplexity_rows(runs)]
    table = markdown_table(("", "paper, Table 4", "measured here"), rows)
    paper = any(run["settings"]["model"].get("performer_paper") for run in runs)
    return "\n\n".join([table, *performer_note(by_architecture(runs), paper)])


def _setting_rows(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    config = {row["setting"]: row["alm"] for row in read_table("transnormer_13_config")}

    def same(value: Callable[[Run], Any]) -> str:
        values = {_number(value(run)) for run in runs}
        return " or ".join(sorted(values))

    def model(key: str) -> str:
        return same(lambda run: run["settings"]["model"][key])

    length = same(lambda run: run["settings"]["task"]["tokens_per_sample"])
    size = f"{model('decoder_layers')}, {model('decoder_embed_dim')}"
    return [
        ("corpus", config["data"], same(lambda run: run["data"]["corpus"])),
        (
            "words of training text",
            "–",
            same(lambda run: run["data"]["splits"]["train"]["words"]),
        ),
        ("tokeniser", config["tokenizer"], same(lambda run: run["data"]["tokenizer"])),
        (
            "vocabulary",
            _number(int(config["vocabulary"])),
            same(lambda run: run["data"]["vocabulary"]),
        ),
        (
            "layers, width, heads",
            f"{config['decoder_layers']}, {config['hidden']}, {config['heads']}",
            f"{size}, {model('decoder_attention_heads')}",
        ),
        (
            "tokens per sequence, tokens per update",
            f"{config['sequence_length']}, "
            + _number(int(config["total_batch"]) * int(config["sequence_length"])),
            f"{length}, {same(lambda run: run['tokens_per_update'])}",
        ),
        ("updates", _number(int(config["updates"])), same(lambda run: run["updates"])),
        (
            "peak learning rate, schedule, warm-up updates",
            f"{float(config['peak_lr']):g}, {config['scheduler']}, {_number(int(config['warmup']))}",
            same(_schedule),
        ),
        (
            "dropout, gradient norm clipped at",
            f"{config['hidden_dropout']}, {_clipping(config['clip_norm'])}",
            same(lambda run: f"{run['settings']['model']['dropout']:g}, {_clipping(_clip_norm(run))}"),
        ),
    ]


def _schedule(run: Run) -> str:
    optimization, schedule = run["settings"]["optimization"], run["settings"]["lr_scheduler"]
    return f"{optimization['lr'][0]:g}, {schedule['_name']}, {_number(schedule['warmup_updates'])}"


def _clip_norm(run: Run) -> float:
    return run["settings"]["optimization"]["clip_norm"]


def _clipping(norm: float | str) -> str:
    return f"{float(norm):g}" if float(norm) else "none"


def _number(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _perplexity_rows(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    table = {row["method"]: row for row in read_table("transnormer_04_wikitext103_lm")}
    rows, published, measured = [], {}, {}
    for name, group in by_architecture(runs).items():
        look = LANGUAGE_MODELS[name]
        row = table.get(look.transnormer)
        if row:
            published[look.label] = float(row["ppl_test"])
        measured[look.label] = statistics.mean(_perplexities(group, "test"))
        million = {run["parameters"] / 1e6 for run in group}
        rows.append(
            (
                f"**{look.label}**: perplexity per word, valid / test (million parameters)",
                f"{row['ppl_val']} / {row['ppl_test']} ({row['params_m']})" if row else "–",
                f"{_with_seeds(group, 'valid')} / {_with_seeds(group, 'test')} "
                f"({', '.join(f'{m:.2f}' for m in sorted(million))})",
            )
        )
    order = ("order by test perplexity, best first", _order(published), _order(measured))
    return [*rows, order]


def _perplexities(group: Sequence[Run], split: str) -> list[float]:
    return [run[split]["perplexity_per_word"] for run in group]


def _with_seeds(group: Sequence[Run], split: str) -> str:
    values = _perplexities(group, split)
    mean = f"{statistics.mean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} [seeds: {', '.join(f'{value:.2f}' for value in values)}]"


def _order(perplexities: dict[str, float]) -> str:
    ordered = sorted(perplexities.items(), key=lambda item: item[1])
    words = ordered[0][0]
    for (_, before), (label, value) in pairwise(ordered):
        words += (" = " if value == before else " < ") + label
    return words


def runs_section(runs: Sequence[Run]) -> str:
    """Every run with its seed, budget, losses, speed and memory."""
    if not runs:
        return NOT_MEASURED
    header = (
        "architecture, seed",
        "parameters",
        "updates (best)",
        "train loss, bits per token",
        "valid perplexity per token, word",
        "test perplexity per token, word",
        "tokens/s",
        "peak memory, MiB",
        "minutes",
    )
    rows = [
        (
            f"{LANGUAGE_MODELS[run['architecture']].label}, {run['seed']}",
            f"{run['parameters']:,}",
            f"{run['updates']:,} ({run['best_update']:,})",
            f"{last_train_loss(run):.3f}",
            *(_both_perplexities(run[split]) for split in ("valid", "test")),
            f"{run['tokens_per_second']:,.0f}",
            f"{run['peak_memory_bytes'] / 2**20:,.0f}",
            f"{run['train_seconds'] / 60:.1f}",
        )
        for run in runs
    ]
    return f"{markdown_table(header, rows)}\n\n{provenance(runs)}"


def last_train_loss(run: Run) -> float:
    """Mean over the last tenth of the training: single batches differ."""
    losses = [loss for _, loss in run["curves"]["train"]]
    return statistics.mean(losses[-max(1, len(losses) // 10) :])


def _both_perplexities(figures: dict[str, float]) -> str:
    return f"{figures['perplexity_per_token']:.2f}, {figures['perplexity_per_word']:.2f}"


def provenance(runs: Sequence[Run]) -> str:
    """Where and when, once for each different machine, version or commit."""
    sentences = []
    for run in runs:
        sentences.append(
            f"{where(run)}, torch {run['versions']['torch']}, {run['date']}, commit {run['commit']}."
        )
    return "Measured on " + " ".join(dict.fromkeys(sentences))


def plot_learning_curves(runs: Sequence[Run], path: Path) -> None:
    """Training and validation loss against updates, a row for every group; further seeds are dashed."""
    found, panels = by_architecture(runs), []
    for group, names in groups(list(found), LANGUAGE_MODEL_PANELS).items():
        for split, title in (("train", "Training loss"), ("valid", "Validation loss")):
            curves = [
                Curve(
                    LANGUAGE_MODELS[name].label if run is found[name][0] else "",
                    LANGUAGE_MODELS[name].color,
                    *points(run, split),
                    style,
                )
                for name in names
                for run, style in zip(found[name], STYLES, strict=False)
            ]
            panels.append((f"{title}{group}", "updates", "bits per token", curves))
    note = "One line per run; dashed: the second seed. " + provenance(runs)
    plot_curves(path, panels, columns=2, note=note, log=False, markers=False, source=fingerprint(runs))


def points(run: Run, split: str, parts: int = 50) -> tuple[list[float], list[float]]:
    """A curve's points; training loss as the mean of one of `parts` of the run, batches differ much."""
    measured = run["curves"][split]
    width = max(1, len(measured) // parts) if split == "train" else 1
    pieces = [measured[i : i + width] for i in range(0, len(measured), width)]
    return (
        [piece[-1][0] for piece in pieces],
        [statistics.mean(loss for _, loss in piece) for piece in pieces],
    )
