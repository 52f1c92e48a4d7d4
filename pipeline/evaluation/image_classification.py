"""What a study records of a classifier of images: accuracy, gradient norm, loss scale, LLN's exponents."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.evaluation.accuracy import count_correct
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.training.figures import read_log
from pipeline.training.image_run import CLASSIFICATION, read_image_checkpoint
from user_dir.tasks.image_data import ImageData


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """Accuracy on test, or on valid where there is no test, and what the log says."""
    checkpoint = read_image_checkpoint(run.checkpoint, run.data.folder, run.device, (CLASSIFICATION,))
    split = "test" if "test" in run.data.manifest["splits"] else "valid"
    size = checkpoint.batch_size
    return {
        **checkpoint.about(),
        "training_images": run.data.manifest["splits"]["train"]["images"],
        "split": split,
        **count_correct(checkpoint.model, checkpoint.task, split, size, run.device),
        "most_frequent_class": most_frequent_class(run.data, split),
        **logged(run.folder / "train.log"),
    }


def most_frequent_class(data: ImageData, split: str) -> float:
    """The accuracy on `split`, in percent, of the answer that is most frequent in training."""
    classes = [np.array(data.labelled(name)[1]) for name in ("train", split)]
    return float(100 * np.mean(classes[1] == np.bincount(classes[0]).argmax()))


def logged(log: Path) -> dict[str, Any]:
    """Of the log of a run: the gradient norm, the largest 1 / loss scale, alpha and beta by layer."""
    inner = {int(record["num_updates"]): record for record in read_log(log)["train_inner"]}
    norms = [record["gnorm"] for record in inner.values()]
    scales = [record["loss_scale"] for record in inner.values() if record.get("loss_scale")]
    return {
        "gradient_norm": statistics.median(norms) if norms else None,
        "largest_inverse_loss_scale": 1 / min(scales) if scales else None,
        "exponents": {
            key: [(update, record[key]) for update, record in sorted(inner.items()) if key in record]
            for key in sorted({key for record in inner.values() for key in record})
            if key.startswith(("alpha/", "beta/"))
        },
    }
