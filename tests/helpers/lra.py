"""Small prepared tasks of Long Range Arena in the layout of data-prep/lra.sh, and a stand-in for the task."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from lab.data.preparation import write_rows
from tests.helpers.lm import dictionary
from tests.helpers.roberta import SMALL_PARTS

LENGTHS = {
    "listops": 2000,
    "text": 4000,
    "retrieval": 4000,
    "image": 1024,
    "pathfinder": 1024,
    "path-x": 16384,
}
CLASSES = {"listops": 10, "text": 2, "retrieval": 2, "image": 10, "pathfinder": 2, "path-x": 2}
# Symbols of the dictionary, without fairseq's four.
SYMBOLS = {
    "skyformer": {"listops": 15, "text": 256, "retrieval": 256},
    "state-space": {"listops": 15, "text": 132, "retrieval": 95},
}
SPLITS = {"train": 24, "valid": 9, "test": 11}
SMALL = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "dropout": 0.0, "attention_dropout": 0.0}
# Parts that fit short sequences.
SHORT = {
    **{key: value for key, value in SMALL_PARTS.items() if not key.startswith("flash")},
    "flash_key_dim": 6,
    "flash_quad_key_dim": 6,
    "performer_features": 16,
    "tnn_network_dim": 16,
    "tnn_network_layers": 2,
}


def lra_task(task: str, pipeline: str = "skyformer", length: int | None = None) -> SimpleNamespace:
    """The attributes of the task `lra` that a model reads."""
    symbols = SYMBOLS[pipeline].get(task)
    inputs = ("input0", "input1") if task == "retrieval" else ("input0",) if symbols else ("pixels",)
    data = SimpleNamespace(length=length or LENGTHS[task], inputs=inputs, classes=("",) * CLASSES[task])
    return SimpleNamespace(data=data, source_dictionary=dictionary(symbols + 4) if symbols else None)


def write_lra(
    folder: Path,
    task: str = "listops",
    longest: int = 40,
    splits: dict[str, int] = SPLITS,
    seed: int = 0,
    pipeline: str = "skyformer",
) -> Path:
    """A folder whose class is told by the commonest symbol, or by how grey the pixels are; returned."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    symbols = SYMBOLS[pipeline].get(task)
    inputs = lra_task(task).data.inputs
    about = {}
    for split, rows in splits.items():
        labels = rng.integers(0, CLASSES[task], rows)
        np.save(folder / f"{split}.label.npy", labels)
        if symbols is None:
            pixels = rng.integers(0, 40, (rows, longest)) * (rng.random((rows, longest)) < 0.7)
            np.save(folder / f"{split}.pixels.npy", (pixels + 20 * labels[:, None]).astype(np.uint8))
        else:
            for name in inputs:
                found = _rows(rng, labels, longest, symbols)
                write_rows(folder / f"{split}.{name}", map(torch.tensor, found), symbols + 4)
        about[split] = {"examples": rows, "longest": longest}
    if symbols is not None:
        dictionary(symbols + 4).save(str(folder / "dict.txt"))
    manifest = {
        "task": task,
        "pipeline": "both" if symbols is None else pipeline,
        "inputs": list(inputs),
        "classes": [str(i) for i in range(CLASSES[task])],
        "length": longest,
        "vocabulary": symbols and symbols + 4,
        "end_token": False,
        "origin": "generated",
        "seed": seed,
        "sources": {},
        "splits": about,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / "preparation.json").write_text(json.dumps(manifest))
    return folder


def _rows(rng: np.random.Generator, labels: np.ndarray, longest: int, symbols: int) -> list[np.ndarray]:
    rows = []
    for label in labels:
        row = 4 + rng.integers(0, symbols, rng.integers(longest // 2, longest + 1))
        row[rng.random(len(row)) < 0.5] = 4 + label
        rows.append(row)
    rows[0] = np.resize(rows[0], longest)
    return rows
