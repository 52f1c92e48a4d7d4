"""The repository's root, and files written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, record: Any) -> None:
    """`record` as readable JSON, in one piece, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `path` holds; UserError if it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path} cannot be read as JSON; move it away or restore it") from None


def shown_path(path: Path) -> str:
    """`path` as a person in the repository's root would type it."""
    path = path.resolve()
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
