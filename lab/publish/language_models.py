"""The settings of the measured language models beside those of TransNormer's Table 13."""

from collections.abc import Callable
from typing import Any

from lab.papers import read_table
from lab.publish.tables import Section, markdown_table
from lab.run.recipe import given_settings
from lab.store import Record


def tables(section: Section) -> list[str]:
    """A row for each setting: the paper's on the left, on the right all values that the records have."""
    config = {row["setting"]: row["alm"] for row in read_table("transnormer_13_config")}
    records = [{**record, "settings": given_settings(record)} for record in section.records]

    def same(value: Callable[[Record], Any]) -> str:
        return " or ".join(sorted({number(value(record)) for record in records}))

    def setting(group: str, key: str) -> str:
        return same(lambda record: record["settings"][group][key])

    batch = int(config["total_batch"]) * int(config["sequence_length"])
    words = same(lambda record: record["data"]["splits"]["train"]["words"])
    size = ", ".join(setting("model", key) for key in ("decoder_layers", "decoder_embed_dim"))
    heads = setting("model", "decoder_attention_heads")
    peak = f"{float(config['peak_lr']):g}, {config['scheduler']}, {number(int(config['warmup']))}"
    clipped = f"{config['hidden_dropout']}, {clipping(config['clip_norm'])}"
    rows = [
        ("corpus", config["data"], same(lambda record: record["data"]["corpus"])),
        ("words of training text", "–", words),
        ("tokeniser", config["tokenizer"], same(lambda record: record["data"]["tokenizer"])),
        ("vocabulary", number(int(config["vocabulary"])), same(lambda record: record["data"]["vocabulary"])),
        (
            "layers, width, heads",
            f"{config['decoder_layers']}, {config['hidden']}, {config['heads']}",
            f"{size}, {heads}",
        ),
        (
            "tokens per sequence, tokens per update",
            f"{config['sequence_length']}, {number(batch)}",
            f"{setting('task', 'tokens_per_sample')}, "
            f"{same(lambda record: record['training']['tokens_per_update'])}",
        ),
        ("updates", number(int(config["updates"])), same(lambda record: record["training"]["updates"])),
        ("peak learning rate, schedule, warm-up updates", peak, same(schedule)),
        ("dropout, gradient norm clipped at", clipped, same(regularisation)),
    ]
    return [markdown_table(("setting", "paper, Table 13", "here"), rows)]


def schedule(record: Record) -> str:
    """Peak learning rate, schedule and warm-up of a run."""
    settings = record["settings"]["lr_scheduler"]
    rate = record["settings"]["optimization"]["lr"]
    rate = rate[0] if isinstance(rate, list) else rate
    return f"{float(rate):g}, {settings['_name']}, {number(settings['warmup_updates'])}"


def regularisation(record: Record) -> str:
    """Dropout and clipping of a run."""
    settings = record["settings"]
    return f"{settings['model']['dropout']:g}, {clipping(settings['optimization']['clip_norm'])}"


def clipping(norm: float | str) -> str:
    """At which norm gradients are clipped."""
    return f"{float(norm):g}" if float(norm) else "none"


def number(value: Any) -> str:
    """A number with commas; a text as it is."""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
