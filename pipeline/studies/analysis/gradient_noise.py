"""R2: the relative deviation of gradient norms over minibatches, at each checkpoint of a run."""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import nn

from pipeline.data.prepared import PreparedData
from pipeline.methods import ANALYSED
from pipeline.studies.analysis.logs import LoggedRun
from pipeline.studies.analysis.models import ANALYSED_HERE, load
from pipeline.studies.analysis.record import Record, curve, lines
from pipeline.studies.analysis.training import checkpoints_of
from pipeline.training.checkpoint import Checkpoint, check_reads_text
from user_dir.analysis import relative_deviation
from user_dir.analysis.capture import attentions

SPLIT = "train"
ALL = "all parameters"


def at_checkpoints(runs: Sequence[LoggedRun], data: PreparedData, minibatches: int) -> Record:
    """R2 against updates, for all parameters and for the mean over the attentions of the layers."""
    for run in runs:
        check_reads_text(checkpoints_of(run.folder)[-1][1], ANALYSED_HERE)
    whole, parts, found = [], [], {}
    for run in {run.method: run for run in reversed(runs)}.values():
        label = ANALYSED[run.method].label
        points: dict[int, dict[str, float]] = {}
        for update, path in checkpoints_of(run.folder):
            print(f"  {label}: update {update:,}", flush=True)
            points[update] = _deviations(load(path, data), data, minibatches)
        found[label] = points
        x = list(points)
        layers = [[value for name, value in one.items() if name != ALL] for one in points.values()]
        whole.append(curve(label, x, [one[ALL] for one in points.values()], run.method, style="o-"))
        parts.append(curve(label, x, [sum(one) / len(one) for one in layers], run.method, style="o-"))
    unit = "std over mean"
    return {
        "title": "Noise of gradients at checkpoints",
        "panels": [
            lines("All parameters", "updates", unit, whole),
            lines("Attention, mean of the layers", "updates", unit, parts),
        ],
        "by_layer": {label: {str(x): one for x, one in points.items()} for label, points in found.items()},
        "note": f"Relative deviation of the norm of the gradient over {minibatches} minibatches at "
        "fixed weights: noise without the drift of training.",
    }


def _deviations(trained: Checkpoint, data: PreparedData, count: int) -> dict[str, float]:
    parts: dict[str, nn.Module] = {ALL: trained.model, **attentions(trained.model)}
    norms: dict[str, list[float]] = {name: [] for name in parts}
    for loss in _losses(trained, count):
        trained.model.zero_grad()
        loss.backward()
        for name, part in parts.items():
            gradients = [p.grad for p in part.parameters() if p.grad is not None]
            norms[name].append(torch.stack([g.norm() for g in gradients]).norm().item())
    return {name: relative_deviation(values) for name, values in norms.items()}


def _losses(trained: Checkpoint, count: int) -> Iterator[torch.Tensor]:
    """The mean loss of each of `count` minibatches, the same for every checkpoint of a corpus."""
    task, config = trained.task, trained.config
    task.load_dataset(SPLIT)
    criterion = task.build_criterion(config.criterion)
    batches = task.get_batch_iterator(
        task.dataset(SPLIT),
        max_sentences=config.dataset.batch_size,
        max_tokens=config.dataset.max_tokens,
        seed=1,
    ).next_epoch_itr()
    for sample in islice(batches, count):
        loss, size, _ = criterion(trained.model, sample)
        yield loss / size
