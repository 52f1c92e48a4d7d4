"""The data of a training, noted beside its checkpoints and compared when the run resumes."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from conventions import RUN_DATA
from conventions.content import State, fingerprint, states_of
from conventions.files import replacing

from ..errors import UserError

ENDINGS = {".bin", ".idx", ".label", ".npy"}
"""Of data; the folder may also hold a run, whose log is train.log."""
IDENTIFYING = ("train.idx", "train.*.idx", "train.label.npy")
"""Files that give the length of every row, and the labels."""
ADVICE = "choose another --save-dir, or add --allow-changed data"


def keep_data_record(
    folders: Sequence[Path], save_dir: Path, resumes: bool, allowed: bool = False, advice: str = ADVICE
) -> None:
    """Note in `save_dir` the training data; UserError if a run `resumes` with others and none are `allowed`.

    The data are unchanged if the content of every file is. A file is read again only if its bytes or its time
    have changed.
    """
    path = save_dir / RUN_DATA
    old = _read(path)
    files = _files_in(folders, old.get("files", {}))
    rows = [state[2] for name, (_, state) in files.items() if any(map(PurePath(name).match, IDENTIFYING))]
    record = {
        "data": os.pathsep.join(str(folder.absolute()) for folder in folders),
        "fingerprint": fingerprint(rows),
        "files": {name: state for name, (_, state) in files.items()},
    }
    if resumes and old and not allowed:
        if old["fingerprint"] != record["fingerprint"]:
            raise UserError(
                f"{save_dir} holds a run on other training data ({old['data']}) than "
                f"{os.pathsep.join(map(str, folders))}; give those, " + advice
            )
        for name, (file, state) in files.items():
            if old.get("files", {}).get(name, state)[2] != state[2]:
                raise UserError(
                    f"{file} has changed since the run in {save_dir} began; restore the file, {advice}"
                )
    if record != old:
        with replacing(path) as partial:
            partial.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _files_in(folders: Sequence[Path], known: Mapping[str, State]) -> dict[str, tuple[Path, State]]:
    """The files of the training data with their states, by name; in the second folder this is 2/NAME."""
    found = {}
    for number, folder in enumerate(folders, 1):
        place = f"{number}/" if number > 1 else ""
        paths = [path for path in folder.rglob("train.*") if path.suffix in ENDINGS and path.is_file()]
        names = [str(path.relative_to(folder)) for path in sorted(paths)]
        before = {name.removeprefix(place): state for name, state in known.items() if name.startswith(place)}
        for name, state in states_of(folder, names, before).items():
            found[place + name] = folder / name, state
    return found


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
