"""Associative recall: how many questions a model answers, and how much its decoding state holds."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqLanguageModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from lab.measure import TrainedRun
from lab.measure.accuracy import batches_of
from lab.run.checkpoint import read_checkpoint


@torch.inference_mode()
def recalling(
    model: FairseqLanguageModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Loss in nats and accuracy of all questions of a split, and the share of rows without a mistake."""
    model = model.to(device).eval()
    pad, loss, counted, right, exact, rows = task.target_dictionary.pad(), 0.0, 0, 0, 0, 0
    for batch in batches_of(task, split, device, max_sentences=batch_size):
        target = batch["target"]
        logits = model(**batch["net_input"])[0].float()
        loss += float(F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="sum"))
        wrong = logits.argmax(-1).ne(target) & target.ne(pad)
        counted += batch["ntokens"]
        right += batch["ntokens"] - int(wrong.sum())
        exact += int((~wrong.any(1)).sum())
        rows += len(target)
    return {
        "examples": rows,
        "counted": counted,
        "loss_nats": loss / counted,
        "accuracy": right / counted,
        "exact": exact / rows,
    }


@torch.inference_mode()
def state_numbers(model: FairseqLanguageModel, row: Tensor) -> int:
    """How many floating-point numbers decoding keeps of one row `(1, N)` once it has been read."""
    state: dict[str, Any] = {}
    model.eval()(row, incremental_state=state)
    found: dict[int, Tensor] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            found[id(value)] = value
        elif isinstance(value, dict):
            for one in value.values():
                collect(one)

    collect(state)
    return sum(tensor.numel() for tensor in found.values())


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """The figures of recall on test."""
    trained = read_checkpoint(run.checkpoint)
    found = recalling(trained.model, trained.task, "test", trained.batch_size, run.device)
    row = trained.task.dataset("test")[0]["source"][None].to(run.device)
    return {"parameters": trained.parameters, **found, "state_numbers": state_numbers(trained.model, row)}
