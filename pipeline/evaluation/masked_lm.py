"""Masked-LM perplexity of an encoder."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

from pipeline.data.prepared import PreparedData
from pipeline.errors import UserError
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.evaluation.perplexity import perplexity_of, unigram_bits
from pipeline.files import shown_path
from pipeline.training.checkpoint import (
    Checkpoint,
    architecture_of,
    load_encoder,
    read_dictionary,
    read_encoder,
    usual_device,
)
from user_dir.models import LinearAttentionRoberta
from user_dir.models.output_matrix import masked_lm_features
from user_dir.modules.linear_cross_entropy import token_losses

TOKENS_PER_BATCH = 4096
SEED = 1


@torch.inference_mode()
def masked_lm_loss(model: LinearAttentionRoberta, task: MaskedLMTask, split: str) -> tuple[float, int]:
    """Mean loss in nats, and the number of masked tokens it is the mean of.

    The masks are those of fairseq's task with its seed: the same for every encoder of one length.
    """
    device = usual_device()
    model = model.to(device).eval()
    task.load_dataset(split)
    size = max(TOKENS_PER_BATCH, model.max_positions())
    batches = task.get_batch_iterator(
        task.dataset(split), max_tokens=size, ignore_invalid_inputs=False
    ).next_epoch_itr(shuffle=False)
    total, count = 0.0, 0
    for batch in batches:
        tokens, targets = batch["net_input"]["src_tokens"].to(device), batch["target"].to(device)
        masked = targets.ne(task.source_dictionary.pad())
        x, (weight, bias) = masked_lm_features(model, {"src_tokens": tokens}, masked)
        total += float(token_losses(x, weight, targets[masked], bias).sum())
        count += int(masked.sum())
    if count == 0:
        raise UserError(f"not one token of {split} was masked; is the split empty?")
    return total / count, count


def evaluate(encoder: Checkpoint, data: PreparedData, splits: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The result of each split, as it is written to JSON."""
    model = load_encoder(encoder, read_dictionary(data.folder))
    config = MaskedLMConfig(
        data=str(data.folder), tokens_per_sample=encoder.max_positions, sample_break_mode="none", seed=SEED
    )
    task = MaskedLMTask.setup_task(config)
    for split in splits:
        loss, count = masked_lm_loss(model, task, split)
        yield {
            "checkpoint": shown_path(encoder.path),
            "architecture": architecture_of(encoder),
            "parameters": sum(p.numel() for p in model.parameters()),
            "updates": encoder.updates,
            "corpus": data.manifest.get("corpus"),
            "tokens_per_sample": encoder.max_positions,
            "split": split,
            "masked_tokens": count,
            "loss_nats_per_token": loss,
            "perplexity_per_token": perplexity_of(loss),
        }


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a pre-trained encoder; `unigram_bits` is what token frequencies alone score."""
    encoder = read_encoder(run.checkpoint)
    results = list(evaluate(encoder, run.data, ("valid", "test")))
    found = {
        one["split"]: {
            "masked_tokens": one["masked_tokens"],
            "bits": one["loss_nats_per_token"] / math.log(2),
            "perplexity": one["perplexity_per_token"],
            "unigram_bits": unigram_bits(run.data, one["split"]),
        }
        for one in results
    }
    return {
        **found,
        "architecture": results[-1]["architecture"],
        "parameters": results[-1]["parameters"],
        "best_update": encoder.updates,
    }
