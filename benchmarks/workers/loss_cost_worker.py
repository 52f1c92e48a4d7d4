"""Measures one case of what a loss costs, in a process of its own; started by `loss_cost.py`."""

import importlib.util
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tokenizer import tokenize_line
from fairseq.trainer import Trainer
from torch import Tensor

from benchmarks.memory import PeakMemory, exact_frees, ran_out_of_memory, usual_frees
from benchmarks.workers.lm_cost_worker import main, timed
from pipeline.data.indexed_rows import RowWriter
from pipeline.files import ROOT
from pipeline.training.recipe import fairseq_arguments, read_experiment
from pipeline.training.train import Machines, parsed
from user_dir.modules.linear_cross_entropy import ROWS, _Chunked, linear_cross_entropy

PAD = 1


def plain(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """What fairseq's `cross_entropy` computes."""
    log_probs = F.log_softmax(F.linear(x, weight), dim=-1, dtype=torch.float32)
    return F.nll_loss(log_probs, target, ignore_index=PAD, reduction="sum")


def chunked(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """What `chunked_cross_entropy` computes."""
    return linear_cross_entropy(x, weight, target, ignore_index=PAD)


def fallback(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """The same without PyTorch's operator."""
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
    found = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
    return [name for name in LOSSES if name not in PACKAGES or (device == "cuda" and name in found)]


def products(x: Tensor, weight: Tensor) -> None:
    """The three matrix products of a loss, in chunks, nothing else."""
    grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
    for start in range(0, len(x), ROWS):
        part = x[start : start + ROWS]
        logits = part @ weight.T
        grad_x[start : start + ROWS] = logits @ weight
        grad_weight.addmm_(logits.T, part)


def measure_losses(case: dict[str, Any]) -> dict[str, Any]:
    """For each loss, in turns: seconds of forward and backward pass, CPU seconds, peak bytes, the loss.

    The peak is above the weight, its gradient, the features and theirs.
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
            except (RuntimeError, MemoryError) as error:
                if not ran_out_of_memory(error):
                    raise
                found[name] = {"status": "out of memory", "seconds": [], "cpu_seconds": []}
    return {"found": found}


def first_step(name: str, x: Tensor, weight: Tensor, target: Tensor) -> dict[str, Any]:
    """The loss per token and the peak memory of one step."""
    exact_frees()
    meter = PeakMemory(x.device.type)
    loss = step(name, x, weight, target)
    gradients = sum(y.numel() * y.element_size() for y in (x, weight))
    peak = meter.bytes() - gradients
    usual_frees()
    return {"loss": loss / len(target), "peak_bytes": peak}


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
    dictionary = Dictionary()
    lines = text.read_text(encoding="utf-8").splitlines()
    for line in lines:
        for word in [*tokenize_line(line), dictionary.eos_word]:
            dictionary.add_symbol(word)
    dictionary.finalize(padding_factor=1)
    while len(dictionary) < words:
        dictionary.add_symbol(f"madeupword{len(dictionary)}", 0)
    dictionary.save(str(folder / "dict.txt"))
    with RowWriter(folder / "train", len(dictionary)) as rows:
        for line in lines:
            rows.add(dictionary.encode_line(line, add_if_not_exist=False))


def measure_update(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds, losses and the peak memory of the whole process of real updates of a YAML."""
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

if __name__ == "__main__":
    main(MEASURES)
