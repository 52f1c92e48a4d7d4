"""Ten ways to damage a checkpoint; code in two of them would leave a trace if it were run."""

import os
import pickle
from pathlib import Path

import torch

from tests.helpers.evil import Evil


def flip_a_bit(path: Path, trace: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def dangle(path: Path, trace: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "empty": lambda path, trace: path.write_bytes(b""),
    "half": lambda path, trace: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "last byte missing": lambda path, trace: path.write_bytes(path.read_bytes()[:-1]),
    "one bit": flip_a_bit,
    "random bytes": lambda path, trace: path.write_bytes(os.urandom(50_000)),
    "text": lambda path, trace: path.write_text("not a checkpoint\n"),
    "pickle with code": lambda path, trace: path.write_bytes(pickle.dumps(Evil(trace))),
    "checkpoint with code": lambda path, trace: torch.save({"model": {}, "cfg": Evil(trace)}, path),
    "no model": lambda path, trace: torch.save({"weights": torch.zeros(3)}, path),
    "dangling link": dangle,
}
