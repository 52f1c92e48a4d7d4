"""How many examples of a split a classifier gets right."""

import math
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda

from pipeline.errors import UserError
from user_dir.criterions import ClassificationCriterion


@torch.inference_mode()
def count_correct(
    model: BaseFairseqModel, task: FairseqTask, split: str, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Examples, correct answers, accuracy in percent and mean loss in bits of a split; all of it counts."""
    model = model.to(device).eval()
    task.load_dataset(split)
    batches = task.get_batch_iterator(
        task.dataset(split), max_sentences=batch_size, max_positions=model.max_positions()
    ).next_epoch_itr(shuffle=False)
    criterion = ClassificationCriterion(task)
    loss, correct, count = 0.0, 0, 0
    for batch in batches:
        if device.type == "cuda":
            batch = move_to_cuda(batch, device)
        _, rows, output = criterion(model, batch)
        loss, correct, count = loss + float(output["loss"]), correct + int(output["ncorrect"]), count + rows
    if count == 0:
        raise UserError(f"{split} holds no example")
    return {
        "examples": count,
        "correct": correct,
        "accuracy": 100 * correct / count,
        "loss_bits": loss / count / math.log(2),
    }
