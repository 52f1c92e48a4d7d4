#!/usr/bin/env python3
"""Gain of packed sequences over padded ones: in the operator, and at best in training.

The lengths are taken from the training text in DATA: its lines, and runs of whole lines of one document of at
most 512 tokens (fairseq's --sample-break-mode eos and complete_doc). Measured are the operator on 4,096
tokens (packed, a loop over the sequences, padded to the longest, and one sequence of the same length), the
share of padding in fairseq's batches, whose sequences are of similar length, and training steps on such
batches beside steps on as many tokens in one row, which a model with packed sequences could reach at best.
Writes packed_cost_DEVICE.json and .md into --out. Takes some minutes on two cores.
"""

import argparse
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/packed_cost.py")

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.measuring import forward_and_backward, measure
from benchmarks.models import SMALL, LanguageModel
from benchmarks.run import choose_device, write_tables
from causal_linear_attention import causal_linear_attention, select_backend
from causal_linear_attention.reference import each_sequence
from lab.console import Parser, add_device, count, run_command
from lab.data.prepared import open_prepared
from lab.files import BENCHMARKS, check_output, json_with, shown_path, write_json
from lab.provenance import environment
from lab.publish.tables import markdown_table, ran_on, spread

RESULT = json_with("environment", "settings", "records")
MODES = ("eos", "complete_doc")
LONGEST = 512  # --tokens-per-sample
TOKENS = 4096  # of a batch, --max-tokens
HEADS, DIM = 8, 64
ARCHITECTURE = "transnormer_t1"
STEPS = 5  # batches, from the shortest sequences to the longest
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


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/packed_cost.py", __doc__)
    parser.add_argument("data", type=Path, metavar="DATA", help="a text prepared by data-prep/wikitext.sh")
    add_device(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=BENCHMARKS,
        metavar="DIR",
        help=f"folder for the results; default: {shown_path(BENCHMARKS)}",
    )
    parser.add_argument(
        "--rounds",
        type=count,
        default=7,
        metavar="N",
        help="how often each case is timed; default: %(default)s",
    )
    return parser.parse_args(argv)


def lengths_of(data: Path, mode: str) -> np.ndarray:
    """Tokens of each training sequence, in the text's order, as fairseq cuts it; longer ones left out."""
    from fairseq.data import TokenBlockDataset
    from fairseq.data.data_utils import load_indexed_dataset

    text = load_indexed_dataset(str(data / "train"))
    found = TokenBlockDataset(text, text.sizes, LONGEST, pad=1, eos=2, break_mode=mode).sizes
    return found[found <= LONGEST].astype(np.int64)


def batches_of(lengths: np.ndarray) -> list[np.ndarray]:
    """The lengths in each of fairseq's batches of at most TOKENS tokens, padding included."""
    from fairseq.data.data_utils import batch_by_size

    order = np.argsort(lengths, kind="stable")
    batches = batch_by_size(order, lengths.__getitem__, num_tokens_vec=lengths[order], max_tokens=TOKENS)
    return [lengths[batch] for batch in batches]


def padding_of(lengths: np.ndarray) -> dict[str, float]:
    """How many sequences there are, their mean length, and the share of their batches that is padding."""
    batches = batches_of(lengths)
    places = sum(len(batch) * int(batch.max()) for batch in batches)
    return {
        "sequences": len(lengths),
        "mean": float(lengths.mean()),
        "longest": int(lengths.max()),
        "padding": 1 - int(lengths.sum()) / places,
    }


def first_tokens(lengths: np.ndarray) -> list[int]:
    """The text's first sequences, TOKENS in all; the last one is cut."""
    ends = np.minimum(lengths.cumsum(), TOKENS)
    return [int(x) for x in np.diff(ends, prepend=0) if x]


def padded(x: Tensor, lengths: list[int]) -> Tensor:
    """The sequences of a row as a batch, with zeros up to the longest."""
    return pad_sequence(x[0].transpose(0, 1).split(lengths), batch_first=True).transpose(1, 2)


def operator_times(lengths: list[int], device: str, backend: str, rounds: int) -> dict[str, Any]:
    """Milliseconds, forward and forward + backward, of each way to compute the sequences.

    Padded tensors are made beforehand, since a model has them from the start.
    """
    row = [torch.rand(1, HEADS, sum(lengths), DIM, device=device) for _ in range(4)]
    batch = [padded(x, lengths).contiguous() for x in row]
    cu_seqlens = torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32)
    attend = partial(causal_linear_attention, normalize=True, backend=backend)
    one = partial(attend, return_state=True)
    ways = {
        "packed": (partial(attend, cu_seqlens=cu_seqlens), row),
        "loop": (lambda *x: each_sequence(*x, cu_seqlens=cu_seqlens, run=lambda *y: one(*y[:3]))[0], row),
        "padded": (attend, batch),
        "one sequence": (attend, row),
    }
    forward = {name: partial(way, *given[:3]) for name, (way, given) in ways.items()}
    both = {name: forward_and_backward(way, *given) for name, (way, given) in ways.items()}
    return {"forward": measure(forward, device, rounds), "forward + backward": measure(both, device, rounds)}


def step_times(model: LanguageModel, batches: list[np.ndarray], rounds: int) -> dict[str, Any]:
    """Tokens and milliseconds of training steps on batches of several lengths, padded and in one row."""
    chosen = [batches[i] for i in np.linspace(0, len(batches) - 1, STEPS).astype(int)]
    tokens, milliseconds = 0, {"padded": 0.0, "one row": 0.0}
    for lengths in chosen:
        samples = {"padded": padded_sample(model, lengths), "one row": model.sample(1, int(lengths.sum()))}
        steps = {name: partial(model.train_step, sample) for name, sample in samples.items()}
        times = measure(steps, model.device, rounds)
        tokens += int(lengths.sum())
        for name, found in times.items():
            milliseconds[name] += float(np.median(found))
    return {"tokens": tokens, "ms": milliseconds}


def padded_sample(model: LanguageModel, lengths: np.ndarray) -> dict[str, Any]:
    """A batch of random tokens with padding after the end of each row."""
    sample, pad = model.sample(len(lengths), int(lengths.max())), model.task.source_dictionary.pad()
    ends = torch.from_numpy(lengths).to(model.device)
    filled = torch.arange(int(lengths.max()), device=model.device) >= ends.unsqueeze(1)
    for tokens in (sample["net_input"]["src_tokens"], sample["target"]):
        tokens[filled] = pad
    sample["net_input"]["src_lengths"], sample["ntokens"] = ends, int(lengths.sum())
    return sample


def markdown(result: dict[str, Any]) -> str:
    """The whole report."""
    head = f"Sequences of `{result['settings']['data']}`. {ran_on([result['environment']])}"
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


def main() -> None:
    arguments = parse_arguments()
    device = choose_device(arguments.device)
    path = arguments.out / f"packed_cost_{device}.json"
    check_output(path, RESULT, beside=(".md",), makes_folder=True)
    data = open_prepared(arguments.data, ("train",)).folder
    torch.manual_seed(0)
    # First: it loads the plugin, which repairs fairseq's `batch_by_size`.
    model = LanguageModel(ARCHITECTURE, SMALL, LONGEST, TOKENS, device)
    records = []
    for mode in MODES:
        lengths = lengths_of(data, mode)
        record = {"mode": mode, **padding_of(lengths), "operator": {}}
        for backend in dict.fromkeys((select_backend("auto", device), "torch")):
            print(f"{mode}: operator, backend {backend}", flush=True)
            times = operator_times(first_tokens(lengths), device, backend, arguments.rounds)
            record["operator"][backend] = times
        print(f"{mode}: training steps", flush=True)
        record["steps"] = step_times(model, batches_of(lengths), arguments.rounds)
        records.append(record)
    settings = {"tokens": TOKENS, "heads": HEADS, "dim": DIM, "architecture": ARCHITECTURE, "data": data.name}
    result = {"environment": environment(device), "settings": settings, "records": records}
    write_json(path, result)
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
