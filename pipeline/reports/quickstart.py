"""The table that quickstart.sh ends with, and that the README shows."""

from typing import Any

from pipeline.reports.tables import shown

COLUMNS = (
    "architecture",
    "parameters",
    "updates",
    "valid ppl/word",
    "test ppl/word",
    "valid ppl/token",
    "test ppl/token",
    "tokens/s",
    "peak memory",
)


def quickstart_table(results: dict[str, dict[str, Any]]) -> str:
    """The comparison as text, in columns."""
    rows = [COLUMNS]
    for architecture, result in results.items():
        valid, test, training = result["valid"], result["test"], result["training"]
        memory = training["peak_memory_bytes"]
        rows.append(
            (
                architecture,
                f"{valid['parameters']:,}",
                f"{valid['updates']:,}",
                f"{valid['perplexity_per_word']:,.1f}",
                f"{test['perplexity_per_word']:,.1f}",
                f"{valid['perplexity_per_token']:,.1f}",
                f"{test['perplexity_per_token']:,.1f}",
                shown(training["tokens_per_second"], ",.0f"),
                shown(memory and memory / 2**20, ",.0f") + " MiB",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )
