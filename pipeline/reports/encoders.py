"""From the measured encoders and the papers' tables to Markdown and learning curves."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.files import fingerprint, read_json
from pipeline.glue_tasks import TASKS
from pipeline.methods import ENCODER_PANELS, ENCODERS, performer_note
from pipeline.papers import read_table
from pipeline.reports.language_models import Run, last_train_loss, points, provenance
from pipeline.reports.plots import Curve, plot_curves
from pipeline.reports.tables import markdown_table

NOT_MEASURED = "Not measured yet; `scripts/measure_roberta.sh` measures it."


def read_encoders(folder: Path) -> list[Run]:
    """The measured encoders of `folder`, in the order of the tables."""
    order = list(ENCODERS)
    runs = [read_json(path) for path in folder.glob("*.json")]
    return sorted(runs, key=lambda run: order.index(run["name"]))


def glue_section(runs: Sequence[Run]) -> str:
    """GLUE figures of the encoders that were fine-tuned, the papers' beside them."""
    runs = [run for run in runs if "glue" in run]
    if not runs:
        return NOT_MEASURED
    published = {row["method"]: row for row in read_table("transnormer_05_glue")}
    lln = {row["method"]: row for row in read_table("lln_01_glue")}
    tasks = list(runs[0]["glue"])
    header = ["", "parameters", "masked-LM perplexity, test", *(_title(task) for task in tasks)]
    header += ["TransNormer's Table 5: million parameters", "MRPC, CoLA, SST-2", "LLN's Table 1: SST-2"]
    rows = []
    for run in runs:
        encoder = ENCODERS[run["name"]]
        theirs = published.get(encoder.transnormer, {})
        rows.append(
            [
                encoder.label,
                f"{run['parameters']:,}",
                f"{run['test']['perplexity_per_token']:.1f}",
                *(_figure(run, task) for task in tasks),
                theirs.get("params_m", "–"),
                ", ".join(theirs.get(key, "–") for key in ("mrpc", "cola", "sst2")) if theirs else "–",
                lln.get(encoder.lln, {}).get("sst2", "–"),
            ]
        )
    majority = [_majority(runs[0], task) for task in tasks]
    rows.append(["the most frequent class", "", "", *majority, "", "", ""])
    paper = any(run["settings"]["model"].get("performer_paper") for run in runs)
    note = performer_note((run["name"] for run in runs), paper)
    return "\n\n".join([markdown_table(header, rows), " ".join([_setting(runs), *note])])


def _title(task: str) -> str:
    return f"{task}, {' / '.join(TASKS[task].metrics)}"


def _figure(run: Run, task: str) -> str:
    best = run["glue"][task]["best"]["dev"]["valid"]
    return " / ".join(f"{best[metric]['mean']:.1f}" for metric in TASKS[task].metrics)


def _majority(run: Run, task: str) -> str:
    figures = run["glue"][task]["majority"]
    return " / ".join(f"{figures[metric]:.1f}" for metric in TASKS[task].metrics)


def _setting(runs: Sequence[Run]) -> str:
    """In what the measured columns differ from the papers'."""
    first = runs[0]
    model = first["settings"]["model"]
    glue = first["glue"]
    updates = ", ".join(f"{task} {entry['updates']:,}" for task, entry in glue.items())
    rates = sorted({cell["learning_rate"] for entry in glue.values() for cell in entry["runs"]})
    seeds = sorted({cell["seed"] for entry in glue.values() for cell in entry["runs"]})
    return (
        f"Measured: {model['encoder_layers']} layers, width {model['encoder_embed_dim']}, "
        f"{model['encoder_attention_heads']} heads; {first['data']['corpus']} "
        f"({first['data']['splits']['train']['words']:,} words), {first['data']['tokenizer']} vocabulary of "
        f"{first['data']['vocabulary']:,}, {first['updates']:,} updates of "
        f"{first['tokens_per_update']:,.0f} tokens. GLUE: the dev set; updates {updates}; the better of the "
        f"learning rates {', '.join(f'{rate:g}' for rate in rates)}; seeds {', '.join(map(str, seeds))}. "
        f"{_papers()}"
    )


def _papers() -> str:
    """How the papers' encoders were trained, each paper's own way."""
    config = {row["setting"]: row["blm"] for row in read_table("transnormer_13_config")}
    tokens = int(config["total_batch"]) * int(config["sequence_length"])
    return (
        f"TransNormer's encoders: {config['encoder_layers']} layers, width {config['hidden']}, "
        f"{config['heads']} heads; {config['data']}, GPT-2's BPE, {int(config['updates']):,} updates of "
        f"{tokens:,} tokens, 3 epochs of fine-tuning. LLN's own: the same size, {config['data']}, fairseq's "
        "default RoBERTa-base configuration in FP16; its table quotes the others. "
        "Seeds and weight decay in fine-tuning are ours; the papers give neither."
    )


def runs_section(runs: Sequence[Run]) -> str:
    """Every encoder in pre-training: perplexity, size, speed and memory, the papers' GLUE averages beside."""
    if not runs:
        return NOT_MEASURED
    averages = [_averages(table) for table in ("transnormer_05_glue", "lln_01_glue")]
    header = (
        "",
        "masked-LM perplexity, valid / test",
        "parameters",
        "updates (best)",
        "train loss, bits per masked token",
        "tokens/s",
        "peak memory, MiB",
        "minutes",
        "GLUE average of seven (MNLI m and mm, QNLI, QQP, SST-2, MRPC, CoLA), TransNormer's Table 5",
        "GLUE average of four (MNLI m, QNLI, QQP, SST-2), LLN's Table 1",
    )
    rows = []
    for run in runs:
        encoder = ENCODERS[run["name"]]
        rows.append(
            (
                encoder.label,
                " / ".join(f"{run[split]['perplexity_per_token']:.1f}" for split in ("valid", "test")),
                f"{run['parameters']:,}",
                f"{run['updates']:,} ({run['best_update']:,})",
                f"{last_train_loss(run):.3f}",
                f"{run['tokens_per_second']:,.0f}",
                f"{run['peak_memory_bytes'] / 2**20:,.0f}",
                f"{run['train_seconds'] / 60:.1f}",
                averages[0].get(encoder.transnormer, "–"),
                averages[1].get(encoder.lln, "–"),
            )
        )
    return f"{markdown_table(header, rows)}\n\n{provenance(runs)}"


def _averages(table: str) -> dict[str, str]:
    return {row["method"]: row["avg"] for row in read_table(table)}


def plot_encoders(runs: Sequence[Run], path: Path) -> None:
    """Training loss of the masked LM against updates, a panel a family of methods."""
    measured = {run["name"]: run for run in runs}
    panels = [
        (title, "updates", "bits per masked token", [_curve(measured[n]) for n in names if n in measured])
        for title, names in ENCODER_PANELS.items()
    ]
    plot_curves(path, panels, note=provenance(runs), log=False, markers=False, source=fingerprint(runs))


def _curve(run: Run) -> Curve:
    encoder = ENCODERS[run["name"]]
    return Curve(encoder.label, encoder.color, *points(run, "train", 40))
