"""The sources of the kernels. Set-up and build run this file alone, since the package needs torch."""

import hashlib
from pathlib import Path

SUFFIXES = {".cpp", ".cu", ".cuh", ".h", ".inl"}


def fingerprint(folder: Path) -> str:
    """sha256 of all C++ and CUDA sources in `folder`, names and contents; "" if there are none."""
    digest = hashlib.sha256()
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    for path in files:
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest() if files else ""
