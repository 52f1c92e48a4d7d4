"""Whether a run resumes with the model, the task and the data of its checkpoints."""

from argparse import Namespace
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from pipeline.errors import UserError
from pipeline.files import FINGERPRINT, fingerprint, read_json, sha256_of, write_json
from pipeline.training.checkpoint import sections

DATA = "data.json"
# What tells training data apart without reading all of them: the length of every row, the labels.
TELLING = ("train.idx", "train.*.idx", "train.label.npy")
# Settings of the model or the task that may differ: they change how, not what is computed, or are fairseq's
# copies of settings of other groups. Training fills in the dictionary's fingerprint and the images' shape,
# which are checked when a model is loaded.
FREE = {
    "attention_backend", "checkpoint_activations", "offload_activations", "min_params_to_wrap",
    "log_attention_statistics", "dictionary_sha256", "data", "seed", "batch_size", "batch_size_valid",
    "dataset_impl", "data_buffer_size", "tpu", "use_plasma_view", "plasma_path", "levels", "height", "width",
    "channels", "classes",
}  # fmt: skip


def check_same_settings(saved: Any, read: Namespace, save_dir: Path, allowed: Collection[str]) -> None:
    """UserError for the first setting in which a checkpoint's configuration differs from this run's.

    `saved` is the configuration in the checkpoint, `read` the arguments as fairseq-train reads them;
    settings named in `allowed` may differ.
    """
    configuration = OmegaConf.to_container(
        convert_namespace_to_omegaconf(read), resolve=True, enum_to_str=True
    )
    for name, old, new in differences(saved, configuration):
        if name not in allowed:
            raise UserError(
                f"{save_dir} holds a run whose {name} is {old!r}, not {new!r}; set it as it was, choose "
                f"another --save-dir, or add --allow-changed {name}"
            )


def differences(saved: Any, given: Any) -> Iterator[tuple[str, Any, Any]]:
    """The settings of model and task that both configurations have with different values."""
    for old, new in zip(sections(saved), sections(given), strict=True):
        for key in old:
            if key in new and key not in FREE and old[key] != new[key]:
                yield ("arch" if key == "_name" else key), old[key], new[key]


def keep_data_record(data: Path, save_dir: Path, resumes: bool, allowed: Collection[str]) -> None:
    """Note in `save_dir` what it is trained on; UserError if it `resumes` with other training data.

    The data are those of before if the lengths of their rows, and their labels if they have any, are.
    """
    files = {path for pattern in TELLING for path in data.rglob(pattern)}
    rows = [sha256_of(path) for path in sorted(files)]
    record = {"data": str(data), FINGERPRINT: fingerprint(rows)}
    path = save_dir / DATA
    if resumes and path.is_file() and "data" not in allowed:
        old = read_json(path)
        if old[FINGERPRINT] != record[FINGERPRINT]:
            raise UserError(
                f"{save_dir} holds a run on other training data ({old['data']}) than {data}; give those, "
                "choose another --save-dir, or add --allow-changed data"
            )
    write_json(path, record)
