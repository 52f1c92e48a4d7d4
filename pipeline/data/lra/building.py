"""From the files of a task, or from its generator, to its prepared folder."""

import shutil
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.data.lra import listops, pathfinder
from pipeline.data.lra.generation import BlockStore
from pipeline.data.lra.images import write_image, write_pathfinder
from pipeline.data.lra.listops import ListOpsRows, write_generated, write_listops
from pipeline.data.lra.sources import Source, find_source
from pipeline.data.lra.symbols import ByteSymbols, CharacterSymbols, Symbols
from pipeline.data.lra.tasks import BOTH, STATE_SPACE, LraTask
from pipeline.data.lra.texts import write_retrieval, write_text
from pipeline.data.lra.writing import SplitRecord, write_description, write_pixels
from pipeline.data.preparation import SPLITS, Workplace, check_accepted, check_settings, prepare_once
from pipeline.errors import UserError
from pipeline.files import known_sha256

SAMPLE = "sample"
LEAST_OCCURRENCES = {"text": 15, "retrieval": 1}
"""How often a character must occur in train to be in the state-space vocabulary."""


@dataclass(frozen=True)
class Choices:
    """What the command line chose."""

    source: Path | None
    """The archive or folder; None to generate."""
    pipeline: str
    close_brackets: bool
    valid_fraction: float
    seed: int
    examples: int | None
    """How many to generate; None for as many as published."""
    processes: int
    skip_empty: bool
    partial: bool = False
    """Whether a sample will do, that is files with another number of examples than published."""
    length: int | None = None
    """The most positions of a review; None for the benchmark's."""

    def folder_name(self, task: LraTask) -> str:
        """The name of the prepared folder."""
        if task.is_image:
            return task.name
        if task.name == "listops" and not self.close_brackets:
            return "listops-no-brackets"
        name = f"{task.name}-{STATE_SPACE}" if self.pipeline == STATE_SPACE else task.name
        return f"{name}-{self.length}" if self.length else name

    def settings(self, task: LraTask) -> dict[str, Any]:
        """What they mean for a task, as its manifest says it."""
        drawn = self.source is None or task.name in ("image", "pathfinder", "path-x")
        drawn = drawn or (task.name == "text" and self.valid_fraction > 0)
        settings: dict[str, Any] = {
            "pipeline": BOTH if task.is_image else self.pipeline,
            "end_token": not task.is_image and self.pipeline == STATE_SPACE,
            "seed": self.seed if drawn else None,
        }
        if task.name == "listops":
            settings["close_brackets"] = self.close_brackets
        if task.name == "text":
            settings["valid_fraction"] = self.valid_fraction
        return settings


def prepare_task(task: LraTask, choices: Choices, dest: Path) -> dict:
    """The manifest of DEST/NAME, which is made unless it is there; UserError if it was made otherwise."""
    folder = dest / choices.folder_name(task)
    blocks = folder.with_name(f"{folder.name}.blocks-seed{choices.seed}")
    builder = _Builder(task, choices, blocks)
    manifest = prepare_once(folder, builder.build)
    for leftover in folder.parent.glob(f"{folder.name}.blocks-seed*"):
        shutil.rmtree(leftover)
    _check_same(manifest, task, choices, folder)
    check_accepted(folder, "a sample", choices.partial or manifest.get("origin") != SAMPLE, "--partial")
    return manifest


def _check_same(manifest: dict, task: LraTask, choices: Choices, folder: Path) -> None:
    """Refuse to pass a folder prepared otherwise, or from another archive, for what was asked."""
    asked = {"task": task.name, "generated": choices.source is None, **choices.settings(task)}
    there = {**manifest, "generated": manifest.get("origin") == "generated"}
    if choices.source is None:
        asked["examples"] = choices.examples or sum(task.sizes.values())
        there["examples"] = sum(split["examples"] for split in manifest["splits"].values())
    else:
        source = find_source(task, choices.source)
        if choices.length:
            asked["length"] = choices.length
        archive = source.path
        if archive.is_file() and known_sha256(archive) not in manifest.get("sources", {}).values():
            asked["sources"] = {archive.name: known_sha256(archive)}
    check_settings(folder, there, asked)


class _Builder:
    def __init__(self, task: LraTask, choices: Choices, blocks: Path) -> None:
        self.task = task
        self.choices = choices
        self.blocks = blocks
        self.length = choices.length or task.lengths.get(choices.pipeline, task.length)

    def build(self, place: Workplace) -> dict:
        """Fill the folder; returns its manifest."""
        source = find_source(self.task, self.choices.source) if self.choices.source else None
        write = self._texts
        if self.task.is_image:
            write = self._images
        elif self.task.name == "listops":
            write = self._listops
        if source:
            print(f"Reading {source.path} ...", flush=True)
        with source.reading() if source else nullcontext():
            records, details = write(source, place.folder)
        origin = self._origin(records)
        if origin == SAMPLE and not self.choices.partial:
            counts = ", ".join(f"{len(record.labels):,} {split}" for split, record in records.items())
            raise UserError(
                f"{self.choices.source} holds {counts} examples of {self.task.name}, not those published; "
                f"get the whole files, {self.task.origin}, or take these as they are with --partial"
            )
        settings = {
            "length": self.length,
            "origin": origin,
            **self.choices.settings(self.task),
            **details,
            "verified": source.verified if source else None,
            "sources": source.fingerprints() if source else {},
        }
        return write_description(place.folder, self.task, records, settings)

    def _origin(self, records: dict[str, SplitRecord]) -> str:
        if self.choices.source is None:
            return "generated"
        sizes = {split: len(records[split].labels) if split in records else 0 for split in SPLITS}
        if self.task.name == "text":  # what is held out comes from train
            sizes = {"train": sizes["train"] + sizes["valid"], "valid": 0, "test": sizes["test"]}
        return "published" if sizes == self.task.sizes else SAMPLE

    def _texts(self, source: Source, folder: Path) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
        symbols: Symbols = ByteSymbols(self.length)
        if self.choices.pipeline == STATE_SPACE:
            symbols = CharacterSymbols(self.length, LEAST_OCCURRENCES[self.task.name])
        if self.task.name == "text":
            records = write_text(source, folder, symbols, self.choices.valid_fraction, self.choices.seed)
            counted = ["train", "valid"]  # both are the published train
        else:
            records = write_retrieval(source, folder, symbols)
            counted = ["train"]
        stems = {split: [f"{split}.{name}" for name in self.task.inputs] for split in records}
        every = [stem for names in stems.values() for stem in names]
        seen = [stem for split in counted for stem in stems.get(split, [])]
        return records, {"vocabulary": symbols.finish(folder, every, seen)}

    def _listops(self, source: Source | None, folder: Path) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
        rows = ListOpsRows(self.length, self.choices.close_brackets, self.choices.pipeline == STATE_SPACE)
        if source:
            records = write_listops(source, folder, rows)
        else:
            make = partial(listops.draw_block, self.choices.seed)
            sizes = self._generated_sizes()
            blocks = self._store(make, listops.BLOCK, "expressions", sum(sizes.values()))
            records = write_generated(folder, sizes, blocks, rows)
        return records, {"vocabulary": rows.finish(folder)}

    def _images(self, source: Source | None, folder: Path) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
        if source is None:
            return self._draw_images(folder), {}
        if self.task.name == "image":
            return write_image(source, folder, self.choices.seed), {}
        records, skipped = write_pathfinder(source, folder, self.choices.seed, self.choices.skip_empty)
        return records, {"skipped_empty_images": skipped}

    def _draw_images(self, folder: Path) -> dict[str, SplitRecord]:
        sizes = self._generated_sizes()
        make = partial(pathfinder.draw_block, self.task.side, self.choices.seed)
        blocks = self._store(make, pathfinder.BLOCK, "images", sum(sizes.values()))
        images = ((label, image) for block in blocks for label, image in zip(*block.values(), strict=True))
        return {
            split: write_pixels(folder, split, size, images, self.task.length)
            for split, size in sizes.items()
        }

    def _generated_sizes(self) -> dict[str, int]:
        return self.task.split_sizes(self.choices.examples or sum(self.task.sizes.values()))

    def _store(self, make: Any, size: int, unit: str, wanted: int) -> BlockStore:
        store = BlockStore(self.blocks, make, size, unit, self.choices.processes)
        store.require(-(-wanted // size))
        return store
