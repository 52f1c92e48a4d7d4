"""Whether a run resumes with the model, the task and the data of its checkpoints."""

from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from pipeline.errors import UserError
from pipeline.files import FINGERPRINT, fingerprint, read_json, sha256_of, write_json
from pipeline.outputs import check_output, json_with
from pipeline.training.checkpoint import sections
from user_dir.checks.same_settings import differences

DATA = "data.json"
DATA_RECORD = json_with("data", FINGERPRINT)
# Files that identify the training data: the length of every row, the labels.
IDENTIFYING = ("train.idx", "train.*.idx", "train.label.npy")


def check_same_settings(saved: Any, read: Namespace, save_dir: Path, allowed: Collection[str]) -> None:
    """UserError for the first setting in which a checkpoint's configuration differs from this run's.

    `saved` is the configuration in the checkpoint, `read` the arguments as fairseq-train reads them;
    settings named in `allowed` may differ.
    """
    configuration = OmegaConf.to_container(
        convert_namespace_to_omegaconf(read), resolve=True, enum_to_str=True
    )
    for kind, old_part, new_part in zip(
        ("arch", "task"), sections(saved), sections(configuration), strict=True
    ):
        for name, old, new in differences(kind, old_part, new_part):
            if name not in allowed:
                raise UserError(
                    f"{save_dir} holds a run whose {name} is {old!r}, not {new!r}; set it as it was, choose "
                    f"another --save-dir, or add --allow-changed {name}"
                )


def is_failed_start(save_dir: Path) -> bool:
    """Whether all that `save_dir` holds of a run was written before its first checkpoint."""
    path = save_dir / DATA
    return path.is_file() and DATA_RECORD(path) and not any(save_dir.glob("checkpoint*.pt"))


def keep_data_record(data: Path, save_dir: Path, resumes: bool, allowed: Collection[str]) -> None:
    """Note in `save_dir` what it is trained on; UserError if it `resumes` with other training data.

    The data are those of before if the lengths of their rows, and their labels if they have any, are.
    """
    files = {path for pattern in IDENTIFYING for path in data.rglob(pattern)}
    rows = [sha256_of(path) for path in sorted(files)]
    record = {"data": str(data), FINGERPRINT: fingerprint(rows)}
    path = save_dir / DATA
    check_output(path, DATA_RECORD, option="--save-dir")
    if resumes and path.is_file() and "data" not in allowed:
        old = read_json(path)
        if old[FINGERPRINT] != record[FINGERPRINT]:
            raise UserError(
                f"{save_dir} holds a run on other training data ({old['data']}) than {data}; give those, "
                "choose another --save-dir, or add --allow-changed data"
            )
    write_json(path, record)
