"""The data of a training, noted beside its checkpoints and compared when the run resumes."""

import json
from pathlib import Path
from typing import Any

from conventions import RUN_DATA
from conventions.content import fingerprint, states_of
from conventions.files import replacing

from ..errors import UserError

FILES = "train.*"
IDENTIFYING = ("train.idx", "train.*.idx", "train.label.npy")
"""Files that give the length of every row, and the labels."""
ADVICE = "choose another --save-dir, or add --allow-changed data"


def keep_data_record(
    data: Path, save_dir: Path, resumes: bool, allowed: bool = False, advice: str = ADVICE
) -> None:
    """Note in `save_dir` the training data; UserError if a run `resumes` with others and none are `allowed`.

    The data are unchanged if the content of every file is. A file is read again only if its bytes or its time
    have changed.
    """
    path = save_dir / RUN_DATA
    old = _read(path)
    files = sorted(file for file in data.rglob(FILES) if file.is_file())
    names = [str(file.relative_to(data)) for file in files]
    states = states_of(data, names, old.get("files", {}))
    rows = [states[str(one.relative_to(data))][2] for one in files if any(map(one.match, IDENTIFYING))]
    record = {"data": str(data.absolute()), "fingerprint": fingerprint(rows), "files": states}
    if resumes and old and not allowed:
        if old["fingerprint"] != record["fingerprint"]:
            raise UserError(
                f"{save_dir} holds a run on other training data ({old['data']}) than {data}; give those, "
                + advice
            )
        for name, (_, _, digest) in old.get("files", {}).items():
            if name in states and states[name][2] != digest:
                raise UserError(
                    f"{data / name} has changed since the run in {save_dir} began; restore the file, {advice}"
                )
    if record != old:
        with replacing(path) as partial:
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    """The note that a run has left; nothing if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not {"data", "fingerprint"} <= found.keys() or not _is_states(found):
        raise UserError(f"{path} does not name the data of the run; move it away, or restore it")
    return found


def _is_states(record: dict[str, Any]) -> bool:
    """Whether the state of each file has its form, if there are any."""
    files = record.get("files", {})
    return isinstance(files, dict) and all(isinstance(x, list) and len(x) == 3 for x in files.values())
