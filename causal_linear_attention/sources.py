"""What the kernels are built from. The build runs this file alone, since the package needs its kernels."""

import hashlib
from pathlib import Path


def fingerprint(folder: Path) -> str:
    """sha256 of all files in `folder`, names and contents; "" if there are none."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest() if files else ""
