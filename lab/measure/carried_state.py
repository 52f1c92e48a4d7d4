"""Perplexity of texts of any length: states are carried from one segment to the next (eval_ppl.sh).

A split is read as streams of consecutive tokens: a few of equal length side by side, or one per document. The
result is a table, JSON and a plot, or the figures of a study's record.
"""

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from torch import Tensor, nn
from tqdm import tqdm

from lab.console import Parser
from lab.data.masked_lm import TITLE
from lab.data.prepared import PreparedData
from lab.errors import UserError
from lab.files import marked, shown_path, write_atomically, write_json
from lab.measure import TrainedRun
from lab.measure.perplexity import evaluate, figures, perplexity_of, unigram_bits
from lab.options.evaluate import BESIDE_CARRIED, PPL_SCRIPT
from lab.provenance import environment, memory_available, process_memory
from lab.publish.language_models import markdown, plot
from lab.run.checkpoint import Checkpoint, read_language_model, usual_device
from user_dir.attention.parts.state import state_bytes
from user_dir.checks.settings import read_overrides
from user_dir.models import LinearAttentionLM
from user_dir.models.output_matrix import output_matrix
from user_dir.modules import LearnedPositions, SinusoidalPositions
from user_dir.modules.linear_cross_entropy import token_losses

CARRIED = "carried_language_modeling"
STREAMS, READ_AT_ONCE = 8, 256  # of a study
FIGURES = ("loss_nats_per_token", "perplexity_per_token", "perplexity_per_word", "tokens")
FIRST_BUCKET = 512
PROBE = 256


@dataclass(frozen=True)
class Streams:
    """Rows that are read side by side, with padding behind the shorter ones.

    `source`, `target`: `(B, L)`, the target of a position being the source of the next.
    """

    source: Tensor
    target: Tensor


def read_rows(data: PreparedData, split: str, dictionary: Dictionary) -> list[Tensor]:
    """The rows of a split, each with its end-of-line."""
    rows = load_indexed_dataset(str(data.folder / split), dictionary)
    return [rows[i].long() for i in range(len(rows))]


def parallel_streams(rows: list[Tensor], count: int, dictionary: Dictionary) -> Streams:
    """The text cut into `count` pieces, equally long but for the last one.

    Raises:
        UserError: when the text has fewer tokens than pieces.
    """
    text = torch.cat(rows)
    length = -(-len(text) // count)
    pieces = list(text.split(length))
    if len(pieces) < count:
        raise UserError(
            f"--streams is {count}, but {len(text):,} tokens make {len(pieces)} streams of {length}; give "
            f"{len(pieces)} or fewer"
        )
    before = [dictionary.eos(), *(int(piece[-1]) for piece in pieces[:-1])]
    return side_by_side(pieces, before, dictionary)


def side_by_side(pieces: list[Tensor], before: list[int], dictionary: Dictionary) -> Streams:
    """`pieces` as rows; `before` holds the token that each one is preceded by."""
    target = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True, padding_value=dictionary.pad())
    source = target.roll(1, dims=1)
    source[:, 0] = torch.tensor(before)
    source[target.eq(dictionary.pad())] = dictionary.pad()
    return Streams(source, target)


def document_streams(
    rows: list[Tensor], count: int, dictionary: Dictionary, subwords: str | None
) -> list[Streams]:
    """WikiText's articles, `count` side by side, grouped by similar length.

    `subwords` is fairseq's name of the tokeniser, None for words. Raises UserError without a single title.
    """
    documents = split_documents(rows, dictionary, subwords)
    documents.sort(key=len, reverse=True)
    batches = [documents[start : start + count] for start in range(0, len(documents), count)]
    return [side_by_side(batch, [dictionary.eos()] * len(batch), dictionary) for batch in batches]


def split_documents(rows: list[Tensor], dictionary: Dictionary, subwords: str | None) -> list[Tensor]:
    """The tokens of each document; what precedes the first title belongs to the first."""
    starts = [
        number
        for number, row in enumerate(rows)
        if TITLE.fullmatch(dictionary.string(row, subwords).strip())
        and all(len(rows[n]) == 1 for n in (number - 1, number + 1) if 0 <= n < len(rows))
    ]
    if not starts:
        raise UserError(
            "the split has no document: no line is a title as in WikiText (= Title =), between empty lines; "
            "leave out --reset-at-documents"
        )
    bounds = [0, *starts[1:], len(rows)]
    return [torch.cat(rows[first:last]) for first, last in pairwise(bounds)]


def segment_losses(
    model: nn.Module, streams: Streams, padding_idx: int, segments: Iterable[int]
) -> Iterator[tuple[int, Tensor, dict]]:
    """Losses of all tokens in nats, segment by segment, in O(segment) memory besides the state.

    Any `segments`, lengths of 1 up, give the losses of one forward pass over the whole streams.

    Yields:
        Where a segment starts, its losses `(B, T)`, zero at padding, and fairseq's incremental state.
    """
    weight, bias = output_matrix(model)
    state: dict = {}
    start, length = 0, streams.source.shape[1]
    for count in segments:
        if start >= length:
            return
        end = min(start + count, length)
        source, target = (x[:, start:end].to(weight.device) for x in (streams.source, streams.target))
        features, _ = model(source, incremental_state=state, features_only=True, next_segment=True)
        losses = token_losses(
            features.flatten(0, 1), weight, target.flatten(), bias, ignore_index=padding_idx
        )
        yield start, losses.view(target.shape), state
        start = end


@dataclass
class Bucket:
    """Sums over positions `first` to `end` - 1 of a stream, and the most memory after a segment of it."""

    first: int
    end: int
    tokens: int = 0
    nats: float = 0.0
    seconds: float = 0.0
    state_bytes: int = 0
    memory_bytes: int = 0

    def result(self) -> dict[str, Any]:
        """For JSON."""
        loss = self.nats / self.tokens
        about = {"loss_nats_per_token": loss, "perplexity_per_token": perplexity_of(loss)}
        return {**asdict(self), **about, "tokens_per_second": self.tokens / self.seconds}


class Buckets:
    """Losses by position (0 to 511, to 1,023, to 2,047 and so on); memory on the model's `device`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buckets: dict[int, Bucket] = {}

    def add(self, start: int, losses: Tensor, real: Tensor, seconds: float, state: dict) -> None:
        """Add the losses of a segment, `(B, T)`, from position `start` on; `real` is False at padding."""
        position, end = start, start + losses.shape[1]
        kept, used = state_bytes(state), memory_in_use(self.device)
        while position < end:
            bucket = self._of(position)
            upto = min(end, bucket.end)
            here = slice(position - start, upto - start)
            bucket.tokens += int(real[:, here].sum())
            bucket.nats += float(losses[:, here].double().sum())
            bucket.seconds += seconds * (upto - position) / (end - start)
            bucket.state_bytes = max(bucket.state_bytes, kept)
            bucket.memory_bytes = max(bucket.memory_bytes, used)
            position = upto

    def _of(self, position: int) -> Bucket:
        number = 0 if position < FIRST_BUCKET else (position // FIRST_BUCKET).bit_length()
        first = FIRST_BUCKET << (number - 1) if number else 0
        return self.buckets.setdefault(number, Bucket(first, FIRST_BUCKET << number))

    def results(self) -> list[dict[str, Any]]:
        """For JSON, in order."""
        return [bucket.result() for _, bucket in sorted(self.buckets.items()) if bucket.tokens]


def memory_in_use(device: torch.device) -> int:
    """Bytes in use: CUDA allocator on a GPU, resident memory on a CPU."""
    return torch.cuda.memory_allocated() if device.type == "cuda" else process_memory("VmRSS")


@torch.inference_mode()
def evaluate_streams(
    model: nn.Module, batches: list[Streams], padding_idx: int, segment: int
) -> list[dict[str, Any]]:
    """The buckets of all streams; UserError for a model that cannot carry its state so far.

    `segment` is how many tokens of each stream are read at a time.
    """
    check_model(model, max(batch.source.shape[1] for batch in batches))
    check_growth(model, batches, padding_idx)
    buckets = Buckets(next(model.parameters()).device)
    total = sum(int(batch.target.ne(padding_idx).sum()) for batch in batches)
    with tqdm(total=total, unit=" tokens", unit_scale=True, disable=None) as bar:
        for streams in batches:
            real = streams.target.ne(padding_idx)
            begin = time.monotonic()
            for start, losses, state in segment_losses(model, streams, padding_idx, repeat(segment)):
                here = real[:, start : start + losses.shape[1]]
                losses = losses.cpu()
                buckets.add(start, losses, here, time.monotonic() - begin, state)
                bar.update(int(here.sum()))
                begin = time.monotonic()
    return buckets.results()


def check_model(model: nn.Module, length: int) -> None:
    """UserError for a model that cannot read streams of `length` tokens in segments."""
    if not isinstance(model, LinearAttentionLM):
        raise UserError(
            f"--carry-state needs a language model of this project; with a state, {type(model).__name__} "
            "reads one token at a time"
        )
    positions = model.decoder.embed_positions
    if isinstance(positions, LearnedPositions) and length > positions.max_positions:
        raise UserError(
            f"a stream of {length:,} tokens is longer than the {positions.max_positions:,} learned positions "
            "of the model; give more --streams, or --reset-at-documents"
        )


def check_growth(model: nn.Module, batches: list[Streams], padding_idx: int) -> None:
    """UserError where the state, which grows with some mechanisms, would not fit into memory.

    Measured on the first 2 x PROBE tokens of a stream.
    """
    longest = max(batches, key=lambda batch: batch.source.numel())
    length = longest.source.shape[1]
    if length < 2 * PROBE:
        return
    head = Streams(longest.source[:1, : 2 * PROBE], longest.target[:1, : 2 * PROBE])
    device = next(model.parameters()).device
    first, second = (state_bytes(s) for _, _, s in segment_losses(model, head, padding_idx, repeat(PROBE)))
    needed = (second - first) / PROBE * longest.source.numel()
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else memory_available()
    if needed > free:
        raise UserError(
            f"the state of this layer plan grows by {(second - first) / PROBE / 1024:.1f} KiB a token, to "
            f"{needed / 2**30:,.1f} GiB over streams of {length:,} tokens, but {free / 2**30:.1f} GiB are "
            "free; give --reset-at-documents, or evaluate without --carry-state"
        )


def remark(model: nn.Module, trained_for: int, length: int) -> str | None:
    """A caveat about the model's absolute positions; None if there is none."""
    if isinstance(model.decoder.embed_positions, SinusoidalPositions) and length > trained_for:
        return (
            f"the sinusoidal positions of the model were trained up to {trained_for:,}, not for the "
            f"{length:,} read here: beyond that, the figures also show how untrained positions do"
        )
    return None


def read_extra(extra: Sequence[str]) -> dict[str, Any]:
    """The model overrides, the only flag of fairseq-eval-lm that goes with --carry-state."""
    parser = Parser(f"{PPL_SCRIPT} --carry-state", add_help=False)
    parser.add_argument("--model-overrides", default="{}")
    return read_overrides(parser.parse_args(list(extra)).model_overrides)


def make_streams(
    data: PreparedData, split: str, dictionary: Dictionary, options: argparse.Namespace
) -> list[Streams]:
    """The streams to read; UserError if none is as long as a segment."""
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
    """The result for one split, as written to JSON."""
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
        "trained_with_state": checkpoint.task_name == CARRIED,
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


def trained_for(checkpoint: Checkpoint) -> int:
    """The last position that the model was trained on: with carried state, a stream lasts an epoch."""
    if checkpoint.task_name != CARRIED:
        return checkpoint.tokens_per_sample
    batches = checkpoint.updates * checkpoint.groups["optimization"]["update_freq"][0]
    place = checkpoint.state["extra_state"]["train_iterator"]
    here, ended = place["iterations_in_epoch"], place["epoch"] - 1
    return checkpoint.tokens_per_sample * max(here, (batches - here) // max(1, ended))


def write_carried(result: dict[str, Any], out: Path) -> None:
    """Write JSON, table and plot, and print the table."""
    table_path, plot_path = (out.with_suffix(ending) for ending in BESIDE_CARRIED)
    text = markdown(result)
    write_json(out, result)
    write_atomically(table_path, marked(text).encode())
    plot(result, plot_path)
    per_word = result["perplexity_per_word"]
    print(
        f"{text}\n{result['tokens']:,} tokens: perplexity {result['perplexity_per_token']:.2f} per token, "
        + (f"{per_word:.2f} per word" if per_word else f"per word unknown, since {result['words_unknown']}")
        + f"\n  written to  {out}, {table_path.name}, {plot_path.name}",
        flush=True,
    )


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """Test perplexity with and without carried state.

    `unigram_perplexity` follows from token frequencies alone.
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
