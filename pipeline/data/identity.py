"""What a record says about its data: the part of a prepared folder's manifest that decides a result."""

import json
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.files import known_sha256

CORPUS = "corpus"
"""Its name; two folders with equal tokens are one corpus."""
LRA = ("task", "pipeline", "origin", "seed", "length", "end_token", "close_brackets", "valid_fraction")
IMAGES = (CORPUS, "verified", "levels", "height", "width", "channels")
GLUE = ("task", "tokenizer", "tokenizer_fingerprint", "partial")
GLUE_SPLIT = ("examples", "sha256")
TEXT = (CORPUS, "tokenizer", "vocabulary", "splits")


def identify(folder: Path) -> dict[str, Any]:
    """The identity of the data in a folder of data-prep/; UserError if there are none.

    A folder without a manifest, which fairseq-preprocess has written, is known by its files.
    """
    if not folder.is_dir():
        raise UserError(f"no data folder {folder}; prepare it with a script of data-prep/")
    path = folder / "preparation.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if "pipeline" in manifest:
            sizes = {name: split["examples"] for name, split in manifest["splits"].items()}
            return {**{key: manifest[key] for key in LRA if key in manifest}, "examples": sizes}
        if "levels" in manifest:
            sizes = {name: split["images"] for name, split in manifest["splits"].items()}
            return {**{key: manifest.get(key) for key in IMAGES}, "images": sizes}
        if "tokenizer_fingerprint" in manifest and "task" in manifest:
            splits = manifest["splits"].items()
            of_each = {name: {key: split[key] for key in GLUE_SPLIT} for name, split in splits}
            return {**{key: manifest[key] for key in GLUE}, "splits": of_each}
        return {key: manifest.get(key) for key in TEXT}
    except FileNotFoundError:
        return {"files": {one.name: known_sha256(one) for one in sorted(folder.glob("*.idx"))}}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged; prepare it again with a script of data-prep/") from None


def has_valid(identity: dict[str, Any]) -> bool:
    """Whether the data have a valid split, which those of Long Range Arena may lack."""
    return "examples" not in identity or "valid" in identity["examples"]


def same_data(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    """Whether two identities are of the same data, whatever their names."""
    named = [{key: value for key, value in (data or {}).items() if key != CORPUS} for data in (one, other)]
    return named[0] == named[1]
