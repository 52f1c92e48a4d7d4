"""Perplexity of a split read from end to end with carried state: as table, JSON and plot, and for a study."""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from pipeline.console import Parser
from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.evaluation.carried_state import (
    Streams,
    document_streams,
    evaluate_streams,
    parallel_streams,
    read_rows,
    remark,
)
from pipeline.evaluation.eval_ppl import COMMAND
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.evaluation.perplexity import evaluate, figures, unigram_bits
from pipeline.files import shown_path, write_atomically, write_json
from pipeline.provenance import environment
from pipeline.reports.carried_state import markdown, plot
from pipeline.training.checkpoint import Checkpoint, read_language_model, usual_device
from user_dir.checks.settings import read_overrides

CARRIED = "carried_language_modeling"
BESIDE = (".md", ".png")  # the table and the plot, beside the JSON
STREAMS, READ_AT_ONCE = 8, 256  # of a study
FIGURES = ("loss_nats_per_token", "perplexity_per_token", "perplexity_per_word", "tokens")


def read_extra(extra: Sequence[str]) -> dict[str, Any]:
    """The model overrides, the only flag of fairseq-eval-lm that goes with --carry-state."""
    parser = Parser(f"{COMMAND} --carry-state", add_help=False)
    parser.add_argument("--model-overrides", default="{}")
    return read_overrides(parser.parse_args(list(extra)).model_overrides)


def make_streams(
    data: PreparedData, split: str, dictionary: Dictionary, options: argparse.Namespace
) -> list[Streams]:
    """What is read; UserError where no stream is as long as a segment."""
    rows = read_rows(data, split, dictionary)
    if options.reset_at_documents:
        subwords = "sentencepiece" if data.sentencepiece_model else None
        return document_streams(rows, options.streams, dictionary, subwords)
    streams = parallel_streams(rows, options.streams, dictionary)
    length = streams.source.shape[1]
    if length < options.segment:
        raise UserError(
            f"--segment is {options.segment}, but the {split} split makes {options.streams} streams of "
            f"{length} tokens; give fewer --streams or a shorter --segment"
        )
    return [streams]


def evaluate_carried(
    checkpoint: Checkpoint,
    data: PreparedData,
    split: str,
    options: argparse.Namespace,
    overrides: dict[str, Any],
) -> dict[str, Any]:
    """The result for one split as it is written to JSON."""
    dictionary = Dictionary.load(str(data.dictionary))
    checkpoint.check_dictionary(data, len(dictionary))
    batches = make_streams(data, split, dictionary, options)
    device = usual_device()
    model = checkpoint.on(data.folder, **overrides).model.to(device)
    start = time.monotonic()
    buckets = evaluate_streams(model, batches, dictionary.pad(), options.segment)
    tokens = sum(bucket["tokens"] for bucket in buckets)
    bits = sum(bucket["nats"] for bucket in buckets) / tokens / math.log(2)
    longest = max(batch.source.shape[1] for batch in batches)
    return {
        "checkpoint": shown_path(checkpoint.path),
        "architecture": checkpoint.architecture,
        "parameters": sum(p.numel() for p in model.parameters()),
        "updates": checkpoint.updates,
        "tokens_per_sample": checkpoint.tokens_per_sample,
        "trained_with_state": with_state(checkpoint),
        "data": shown_path(data.folder),
        "corpus": data.manifest.get("corpus"),
        "split": split,
        "streams": sum(len(batch.source) for batch in batches),
        "longest": longest,
        "segment": options.segment,
        "reset_at_documents": options.reset_at_documents,
        "model_overrides": overrides,
        **figures(bits, tokens, data, split),
        "buckets": buckets,
        "remark": remark(model, trained_for(checkpoint), longest),
        "seconds": round(time.monotonic() - start, 2),
        "environment": environment(device.type),
    }


def with_state(checkpoint: Checkpoint) -> bool:
    """Whether the model was trained with carried state."""
    return checkpoint.task_name == CARRIED


def trained_for(checkpoint: Checkpoint) -> int:
    """The last position that the model was trained on: with carried state, its streams went on and on."""
    batches = checkpoint.updates * checkpoint.groups["optimization"]["update_freq"][0]
    return checkpoint.tokens_per_sample * (batches if with_state(checkpoint) else 1)


def write_carried(result: dict[str, Any], out: Path) -> None:
    """Write JSON, table and plot, and print the table."""
    table_path, plot_path = (out.with_suffix(ending) for ending in BESIDE)
    text = markdown(result)
    write_json(out, result)
    write_atomically(table_path, text.encode())
    plot(result, plot_path)
    per_word = result["perplexity_per_word"]
    print(
        f"{text}\n{result['tokens']:,} tokens: perplexity {result['perplexity_per_token']:.2f} per token, "
        + (f"{per_word:.2f} per word" if per_word else "per word unknown")
        + f"\n  written to  {out}, {table_path.name}, {plot_path.name}",
        flush=True,
    )


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What training with carried state gains or costs: test read in samples apart, and with state.

    `unigram_perplexity` is that of token frequencies alone.
    """
    checkpoint = read_language_model(run.checkpoint)
    reading = argparse.Namespace(streams=STREAMS, segment=READ_AT_ONCE, reset_at_documents=False)
    apart = evaluate(checkpoint, run.data, "test")
    carried = evaluate_carried(checkpoint, run.data, "test", reading, {})
    return {
        "parameters": apart["parameters"],
        "apart": {key: apart[key] for key in FIGURES},
        "carried": {key: carried[key] for key in (*FIGURES, "streams", "longest", "buckets", "remark")},
        "unigram_perplexity": 2 ** unigram_bits(run.data, "test"),
    }
