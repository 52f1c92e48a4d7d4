"""How well a model copies: with the true prefix before every symbol, and in free-running generation."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqLanguageModel
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda
from torch import Tensor

from pipeline.evaluation.evaluators import TrainedRun
from pipeline.training.checkpoint import read_checkpoint
from pipeline.training.log import run_figures
from user_dir.tasks.copy_data import prompts

CONVERGED_LOSS, CONVERGED_ACCURACY = 0.01, 0.999


@torch.inference_mode()
def copying(
    model: FairseqLanguageModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Loss in nats, token accuracy and exact-match rate of a split, all of it.

    `accuracy` is of the targets that count, `exact` of whole sequences, `by_position` of the separator and
    of each symbol behind it; `free_...` the same of what the model writes after sequence and separator,
    where every answer becomes its next input.
    """
    model = model.to(device).eval()
    task.load_dataset(split)
    pad, loss, counted = task.target_dictionary.pad(), 0.0, 0
    right, free = [], []
    batches = task.get_batch_iterator(task.dataset(split), max_sentences=batch_size)
    for batch in batches.next_epoch_itr(shuffle=False):
        if device.type == "cuda":
            batch = move_to_cuda(batch, device)
        target = batch["target"]
        logits = model(**batch["net_input"])[0].float()
        loss += float(F.cross_entropy(logits.transpose(1, 2), target, ignore_index=pad, reduction="sum"))
        counted += batch["ntokens"]
        for row, wanted in zip(logits.argmax(-1).eq(target), target.ne(pad), strict=True):
            right.append(row[wanted].cpu())
        prompt, n = prompts(batch, pad)
        written = write_on(model, prompt, n)
        for i, count in enumerate(n.tolist()):
            free.append(written[i, :count].eq(prompt[i, :count]).cpu())
    return {
        "examples": len(right),
        "counted": counted,
        "loss_nats": loss / counted,
        **_shares(right),
        **{f"free_{name}": value for name, value in _shares(free).items()},
    }


def write_on(model: FairseqLanguageModel, prompt: Tensor, n: Tensor) -> Tensor:
    """The likeliest symbols after `prompt: (B, T)`, whose rows are n + 1 long, `n: (B,)`; `(B, max n)`."""
    state: dict[str, Any] = {}
    logits = model(prompt, incremental_state=state)[0]
    token = logits[torch.arange(len(prompt), device=prompt.device), n].argmax(-1)
    written = [token]
    for _ in range(int(n.max()) - 1):
        token = model(token[:, None], incremental_state=state)[0][:, -1].argmax(-1)
        written.append(token)
    return torch.stack(written, dim=1)


def _shares(rows: list[Tensor]) -> dict[str, Any]:
    """Of rows of right (True) and wrong answers: the share of all, of whole rows, and at each place."""
    longest = max(len(row) for row in rows)
    at_place = [[row[place] for row in rows if len(row) > place] for place in range(longest)]
    return {
        "accuracy": float(torch.cat(rows).double().mean()),
        "exact": sum(bool(row.all()) for row in rows) / len(rows),
        "by_position": [float(torch.stack(answers).double().mean()) for answers in at_place],
    }


def evaluate(checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """The figures of a checkpoint of the task `copy` on its split test, and its number of parameters."""
    trained = read_checkpoint(checkpoint)
    figures = copying(trained.model, trained.task, "test", trained.batch_size, device)
    return {"parameters": trained.parameters, **figures}


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a run; `converged_at` is the first logged update with a converged loss."""
    found = evaluate(run.checkpoint, run.device)
    train = run_figures(run.folder / "train.log")["curves"].get("train", [])
    below = (update for update, bits in train if bits * math.log(2) < CONVERGED_LOSS)
    return {
        **found,
        "converged": found["loss_nats"] < CONVERGED_LOSS and found["accuracy"] > CONVERGED_ACCURACY,
        "converged_at": next(below, None),
    }
