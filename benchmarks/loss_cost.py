#!/usr/bin/env python3
"""Cost of the loss over a large vocabulary: fairseq's cross_entropy beside chunked_cross_entropy.

Time and peak memory of forward and backward pass by vocabulary, losses in turns; on a GPU in bfloat16, with
the errors of the gradients, and Liger's and Apple's kernels, too, where they are installed. With --text also
real updates of configs/wikitext103/transnormer_t1.yaml on that text, its dictionary padded to WikiText-103's
267,744 words. The plain loss takes 16 GiB of memory there. Writes loss_cost_DEVICE.json and .md into --out;
run the same command again to resume. Takes about fifteen minutes on two cores.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/loss_cost.py")

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import PeakMemory, exact_frees, ran_out_of_memory, timed, usual_frees
from benchmarks.run import choose_device, same_case, write_tables
from benchmarks.worker import run_case
from lab.console import Parser, add_device, add_out_dir, count, out_dir, run_command
from lab.errors import UserError
from lab.files import BENCHMARKS, ROOT, check_output, json_with, read_json, shown_path, write_json
from lab.provenance import check_same_machine, environment, memory_available
from lab.publish.tables import markdown_table, ran_on, spread
from lab.run.launch import Machines
from lab.run.recipe import fairseq_arguments

RESULT = json_with("records")
ONE_TABLE = ("tokens", "width", "steps", "losses")
"""Settings that its columns share."""
CONFIG = "configs/wikitext103/transnormer_t1.yaml"
VOCABULARIES = (4000, 33_280, 50_264, 267_744)
TIME_LIMIT = 3600
LABELS = {
    "products": "the three matrix products alone",
    "plain": "`cross_entropy`",
    "chunked": "`chunked_cross_entropy`",
    "fallback": "the project's own loop",
    "liger": "Liger's kernel",
    "apple": "Apple's kernel",
}
GIB = 2**30
PAD = 1


def plain(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The loss of fairseq's `cross_entropy`."""
    log_probs = F.log_softmax(F.linear(x, weight), dim=-1, dtype=torch.float32)
    return F.nll_loss(log_probs, target, ignore_index=PAD, reduction="sum")


def chunked(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The loss of `chunked_cross_entropy`."""
    from user_dir.modules.linear_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(x, weight, target, ignore_index=PAD)


def fallback(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The project's own loop over chunks."""
    from user_dir.modules.linear_cross_entropy import ROWS, _Chunked

    return _Chunked.apply(x, weight, None, target, PAD, ROWS)


def liger(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Liger's kernel."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss(ignore_index=PAD, reduction="sum")(weight, x, target)


def apple(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Apple's kernel (cut cross-entropy)."""
    from cut_cross_entropy import linear_cross_entropy as cut

    return cut(x, weight, target, ignore_index=PAD, reduction="sum")


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    f.__name__: f for f in (plain, chunked, fallback, liger, apple)
}
PACKAGES = {"liger": "liger_kernel", "apple": "cut_cross_entropy"}


def available(device: str) -> list[str]:
    """The losses that this machine can compute; other people's kernels need a GPU."""
    found = [name for name, package in PACKAGES.items() if find_spec(package)]
    return [name for name in LOSSES if name not in PACKAGES or (device == "cuda" and name in found)]


def products(x: Tensor, weight: Tensor) -> None:
    """The three matrix products of a loss, in chunks, nothing else."""
    from user_dir.modules.linear_cross_entropy import ROWS

    grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
    for start in range(0, len(x), ROWS):
        part = x[start : start + ROWS]
        logits = part @ weight.T
        grad_x[start : start + ROWS] = logits @ weight
        grad_weight.addmm_(logits.T, part)


def measure_losses(case: dict[str, Any]) -> dict[str, Any]:
    """For each loss, in turns: seconds of forward and backward pass, CPU seconds, peak bytes, the loss.

    The peak is above the weight, its gradient, the features and theirs. In half precision also the errors of
    the gradients of features and weight, relative to the norm of float32's.
    """
    device = case["device"]
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x = torch.randn(case["tokens"], case["width"], device=device, dtype=dtype, requires_grad=True)
    weight = torch.randn(case["vocabulary"], case["width"], device=device).mul_(0.04).to(dtype)
    weight.requires_grad_()
    target = torch.randint(2, case["vocabulary"], (case["tokens"],), device=device)
    for name in case["losses"]:  # the first call of some loads libraries
        step(name, *(y[:2].detach().requires_grad_() for y in (x, weight)), target[:2].clamp(max=1))
    found: dict[str, Any] = {}
    for turn in range(case["steps"] + 1):
        for name in case["losses"]:
            x.grad = weight.grad = None
            record = found.setdefault(name, {"status": "ok", "seconds": [], "cpu_seconds": []})
            try:
                if turn:  # the first only warms up, under the memory meter
                    begin = time.process_time()
                    record["seconds"].append(timed(partial(step, name, x, weight, target), device))
                    record["cpu_seconds"].append(time.process_time() - begin)
                elif name != "products":
                    record |= first_step(name, x, weight, target)
                    if x.dtype != torch.float32:
                        record["gradient_errors"] = gradient_errors(x, weight, target)
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                found[name] = {"status": "out of memory", "seconds": [], "cpu_seconds": []}
    return {"found": found}


def first_step(name: str, x: Tensor, weight: Tensor, target: Tensor) -> dict[str, Any]:
    """The loss per token and the peak memory of one step."""
    exact_frees()
    try:
        meter = PeakMemory(x.device.type)
        loss = step(name, x, weight, target)
    finally:
        usual_frees()  # also for the losses after one that ran out of memory
    gradients = sum(y.numel() * y.element_size() for y in (x, weight))
    peak = meter.bytes() - gradients
    return {"loss": loss / len(target), "peak_bytes": peak}


def gradient_errors(x: Tensor, weight: Tensor, target: Tensor) -> list[float]:
    """Errors of the gradients of x and of the weight, relative to the norms of the float32 gradients."""
    wide = [y.detach().float().requires_grad_() for y in (x, weight)]
    expected = torch.autograd.grad(fallback(*wide, target), wide)
    errors = (
        y.grad.float().sub_(want).norm() / want.norm() for y, want in zip((x, weight), expected, strict=True)
    )
    return [float(error) for error in errors]


def step(name: str, x: Tensor, weight: Tensor, target: Tensor) -> float:
    """Forward and backward pass; the loss."""
    if name == "products":
        with torch.no_grad():
            products(x, weight)
        return 0.0
    loss = LOSSES[name](x, weight, target)
    loss.backward()
    return float(loss.detach())


def prepare(text: Path, words: int, folder: Path) -> None:
    """The text as the train split of a prepared corpus, its dictionary padded to `words` entries."""
    from fairseq.data import Dictionary
    from fairseq.tokenizer import tokenize_line

    from lab.data.preparation import numbered, write_rows

    dictionary = Dictionary()
    lines = text.read_text(encoding="utf-8").splitlines()
    for line in lines:
        for word in [*tokenize_line(line), dictionary.eos_word]:
            dictionary.add_symbol(word)
    dictionary.finalize(padding_factor=1)
    while len(dictionary) < words:
        dictionary.add_symbol(f"madeupword{len(dictionary)}", 0)
    dictionary.save(str(folder / "dict.txt"))
    write_rows(folder / "train", numbered(lines, dictionary), len(dictionary))


def measure_update(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds, losses and the peak memory of the whole process of real updates of a YAML."""
    from fairseq import tasks
    from fairseq.data.iterators import GroupedIterator
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.trainer import Trainer

    from lab.run.plan import parsed, read_experiment

    experiment = read_experiment(ROOT / case["config"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(Path(case["text"]), case["vocabulary"], folder)
        # One batch of the YAML an update; one process would accumulate 16 of them, in the same memory.
        extra = ["--criterion", case["criterion"], "--no-save", "--num-workers", "0", "--update-freq", "1"]
        arguments = fairseq_arguments(experiment, folder, Machines(0), folder, extra)
        cfg = convert_namespace_to_omegaconf(parsed(arguments))
        task = tasks.setup_task(cfg.task)
        task.load_dataset("train")
        model = task.build_model(cfg.model)
        trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
        batches = trainer.get_train_iterator(1).next_epoch_itr(shuffle=False)
        updates = iter(GroupedIterator(batches, 1))
        trainer.begin_epoch(1)
        meter = PeakMemory("cpu")
        seconds, losses, tokens = [], [], []
        for _ in range(case["updates"]):
            samples = next(updates)
            begin = time.perf_counter()
            stats = trainer.train_step(samples)
            seconds.append(time.perf_counter() - begin)
            losses.append(float(stats["loss"]))
            tokens.append(sum(sample["ntokens"] for sample in samples))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": seconds,
        "losses": losses,
        "tokens": tokens,
        "whole_peak_bytes": meter.whole_bytes(),
    }


MEASURES = {"losses": measure_losses, "update": measure_update}


def markdown(result: dict[str, Any]) -> str:
    """The whole report."""
    losses = [r for r in result["records"] if r["kind"] == "losses"]
    updates = [r for r in result["records"] if r["kind"] == "update"]
    parts = [_losses(losses)] if losses else []
    parts += [_updates(updates)] if updates else []
    return "\n\n".join(parts) + "\n"


def _losses(records: list[dict]) -> str:
    first, sessions = records[0], [record["environment"] for record in records]
    device = sessions[-1]["device"]
    dtype = "bfloat16" if device == "cuda" else "float32"
    parts = [
        f"Forward and backward pass, {first['tokens']:,} tokens, width {first['width']}, {dtype}, "
        f"random numbers, losses in turns. {ran_on(sessions)}"
    ]
    measures = {"Seconds": "seconds"}
    if device == "cpu":  # wall time would also count other work of the machine
        measures = {"Seconds of CPU time, all threads together": "cpu_seconds", **measures}
    for title, key in measures.items():
        parts.append(_table(records, f"{title}, median (range), by vocabulary:", partial(_times, key=key)))
    title = "Peak memory above the weight, its gradient, the features and theirs, GiB, by vocabulary:"
    parts.append(_table(records, title, _peak))
    if any("gradient_errors" in found for r in records for found in r.get("found", {}).values()):
        title = "Error of the gradients of features / weight, % of the norm of float32's, by vocabulary:"
        parts.append(_table(records, title, _errors))
    return "\n\n".join(parts)


def _table(records: list[dict], title: str, show: Callable[[dict], str]) -> str:
    by_size = sorted(records, key=lambda r: r["vocabulary"])
    rows = [
        [LABELS[loss], *(show(r.get("found", {}).get(loss, r)) for r in by_size)]
        for loss in records[0]["losses"]
    ]
    return f"{title}\n\n" + markdown_table(["", *(f"{r['vocabulary']:,}" for r in by_size)], rows)


def _times(found: dict, key: str) -> str:
    return spread(found[key]) if found["status"] == "ok" else found["status"]


def _peak(found: dict) -> str:
    return f"{found['peak_bytes'] / GIB:.2f}" if "peak_bytes" in found else "–"


def _errors(found: dict) -> str:
    return " / ".join(f"{100 * error:.2f}" for error in found.get("gradient_errors", ())) or "–"


def _updates(records: list[dict]) -> str:
    rows = []
    for r in records:
        if r["status"] == "ok":
            figures = [f"{r['tokens'][-1]:,}", f"{r['seconds'][-1]:.1f}", f"{r['losses'][0]:.3f}"]
            memory = f"{r['whole_peak_bytes'] / GIB:.2f}"
        else:
            figures = ["–", "–", "–"]
            memory = r["status"] + (f", limit {r['memory_limit'] / GIB:.1f}" if r["memory_limit"] else "")
        rows.append([f"`{r['criterion']}`", *figures, memory])
    first, sessions = records[0], [record["environment"] for record in records]
    header = ["", "tokens of the last", "its seconds", "loss of the first, bits", "peak of the process, GiB"]
    return (
        f"Updates of `{first['config']}` on `{first['text']}`, dictionary padded to {first['vocabulary']:,}: "
        f"embedding, six layers, loss, Adam. {ran_on(sessions)}\n\n{markdown_table(header, rows)}"
    )


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser("benchmarks/loss_cost.py", __doc__)
    add_device(parser)
    add_out_dir(parser, shown_path(BENCHMARKS))
    sizes = ", ".join(f"{size:,}" for size in VOCABULARIES)
    parser.add_argument(
        "--vocabulary",
        type=count,
        nargs="+",
        default=VOCABULARIES,
        metavar="V",
        help=f"vocabulary sizes to measure; default: {sizes}",
    )
    parser.add_argument(
        "--tokens", type=count, default=4096, metavar="N", help="tokens of a batch; default: %(default)s"
    )
    parser.add_argument(
        "--width", type=count, default=512, metavar="D", help="width of the features; default: %(default)s"
    )
    parser.add_argument(
        "--steps", type=count, default=3, metavar="N", help="timed steps per loss; default: %(default)s"
    )
    parser.add_argument(
        "--restart", action="store_true", help="measure everything again, not only what --out lacks"
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="also time updates on this text, such as wiki.valid.tokens"
    )
    arguments = parser.parse_intermixed_args(argv)
    if arguments.text and not arguments.text.is_file():
        raise UserError(f"no text file {arguments.text}; name WikiText-103's wiki.valid.tokens, unpacked")
    return arguments


def cases(arguments: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """The cases to measure, in this order."""
    shared = {"tokens": arguments.tokens, "width": arguments.width, "steps": arguments.steps}
    losses = ["products", *available(device)]
    found: list[dict[str, Any]] = [
        {"kind": "losses", **shared, "vocabulary": vocabulary, "losses": losses}
        for vocabulary in arguments.vocabulary
    ]
    if arguments.text:
        update = {"kind": "update", "config": CONFIG, "text": str(arguments.text.absolute())}
        update["vocabulary"] = max(arguments.vocabulary)
        for criterion in ("chunked_cross_entropy", "cross_entropy"):
            found.append({**update, "criterion": criterion, "updates": 2})
    return found


def check_same_settings(path: Path, records: list[dict[str, Any]], case: dict[str, Any]) -> None:
    """UserError unless the losses in `path` were measured as `case` is, but for the vocabulary."""
    for record in records:
        if record["kind"] == case["kind"] == "losses" and any(record[x] != case[x] for x in ONE_TABLE):
            raise UserError(
                f"{shown_path(path)} holds figures of other settings; name another folder with --out, or "
                "measure again with --restart"
            )


def measure(todo: list[dict[str, Any]], device: str, path: Path) -> dict[str, Any]:
    """The results in `path` with a record for each case, written after every one.

    A case that needs more than 90 % of the free memory says so. Raises UserError if `path` holds figures of
    another machine or other settings.
    """
    result = read_json(path) if path.is_file() else {"records": []}
    check_same_machine(path, [record.get("environment") for record in result["records"]], device)
    for case in todo:
        check_same_settings(path, result["records"], case)
    start = time.monotonic()
    for number, case in enumerate(todo, 1):
        shown = {**case, **({"text": Path(case["text"]).name} if "text" in case else {})}
        if any(same_case(record, shown) for record in result["records"]):
            continue
        limit = int(0.9 * memory_available()) if device == "cpu" else None
        question = {**case, "benchmark": __file__, "device": device, "memory_limit": limit}
        found = run_case(question, TIME_LIMIT)
        if found["status"] == "failed":
            raise UserError(f"{case} failed: {found['message']}")
        about = {"memory_limit": limit, "environment": environment(device)}
        result["records"].append({**shown, **about, **found})
        write_json(path, result)
        what = f"{case.get('criterion', 'losses')}, {case['vocabulary']:,} words"
        passed = time.monotonic() - start
        print(f"[{number}/{len(todo)}, {passed:.0f} s] {what}: {found['status']}", flush=True)
    return result


def main() -> None:
    arguments = parse_arguments()
    device = choose_device(arguments.device)
    if arguments.text and device == "cuda":
        raise UserError("--text times updates on the CPU; give --device cpu")
    path = (out_dir(arguments) or BENCHMARKS) / f"loss_cost_{device}.json"
    check_output(path, RESULT, [arguments.text], (".md",), makes_folder=True)
    if arguments.restart:
        path.unlink(missing_ok=True)
    result = measure(cases(arguments, device), device, path)
    write_tables(path, markdown(result))


if __name__ == "__main__":
    run_command(main)
