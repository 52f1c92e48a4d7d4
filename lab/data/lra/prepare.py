"""From the files of a task, or from its generator, to its prepared folder.

Generated data are made in blocks by all cores and kept block by block, so that a killed run resumes.
"""

import argparse
import io
import itertools
import re
import resource
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from tqdm import tqdm

from lab.children import worker_pool
from lab.data.lra import listops, pathfinder
from lab.data.lra.images import is_of_pathfinder, write_image, write_pathfinder
from lab.data.lra.tasks import (
    BOTH,
    STATE_SPACE,
    SUMMED,
    LraTask,
    MissingFiles,
    TaskFiles,
    find_source,
    lra_tasks,
)
from lab.data.lra.texts import PAIR_FILES, ByteSymbols, CharacterSymbols, is_review, read_pairs, write_text
from lab.data.lra.writing import SplitRecord, Symbols, write_description, write_files, write_pixels
from lab.data.preparation import check_accepted, check_files, check_prepared_with, prepare_once
from lab.data.prepared import SPLITS
from lab.data.published import CORPORA, address_mark, fetch
from lab.errors import UserError
from lab.files import check_output_folder, sha256_of, write_atomically

SAMPLE = "sample"
LEAST_OCCURRENCES = {"text": 15, "retrieval": 1}
"""How often a character must occur in train to be in the state-space vocabulary."""

Block = dict[str, np.ndarray]
MakeBlock = Callable[[int], Block]
SECONDS_BETWEEN_REPORTS = 15
BLOCK = re.compile(r"(\.[0-9a-f]{8}\.)?\d{6}\.npz(\.part)?")


def prepare_task(task: LraTask, options: argparse.Namespace) -> tuple[Path, dict]:
    """A task's folder in --dest and its manifest; prepares the folder if it is missing.

    Raises UserError if it was made otherwise than the options ask for.
    """
    folder = options.dest / folder_name(task, options)
    blocks = folder.with_name(f"{folder.name}.blocks-seed{options.seed}")
    manifest = prepare_once(folder, _Builder(task, options, blocks).build)
    for leftover in folder.parent.glob(f"{folder.name}.blocks-seed*"):
        remove_blocks(leftover)
    _check_same(manifest, task, options, folder)
    check_accepted(folder, "a sample", options.partial or manifest.get("origin") != SAMPLE, "--partial")
    return folder, manifest


def remove_blocks(folder: Path) -> None:
    """Remove the generated blocks in a folder, and the folder unless it holds other files."""
    for path in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
        if BLOCK.fullmatch(path.name):
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def folder_name(task: LraTask, options: argparse.Namespace) -> str:
    """The name of the prepared folder."""
    if task.is_image:
        return task.name
    if task.name == "listops" and not options.close_brackets:
        return "listops-no-brackets"
    name = f"{task.name}-{STATE_SPACE}" if options.pipeline == STATE_SPACE else task.name
    return f"{name}-{options.length}" if options.length else name


def settings(task: LraTask, options: argparse.Namespace) -> dict[str, Any]:
    """The options of a task under the manifest's keys."""
    drawn = options.source is None or task.name in ("image", "pathfinder", "path-x")
    drawn = drawn or (task.name == "text" and options.valid_fraction > 0)
    found: dict[str, Any] = {
        "pipeline": BOTH if task.is_image else options.pipeline,
        "end_token": not task.is_image and options.pipeline == STATE_SPACE,
        "seed": options.seed if drawn else None,
    }
    if task.name == "listops":
        found["close_brackets"] = options.close_brackets
    if task.name == "text":
        found["valid_fraction"] = options.valid_fraction
    return found


def _check_same(manifest: dict, task: LraTask, options: argparse.Namespace, folder: Path) -> None:
    """UserError if the folder was prepared with other settings or from another archive."""
    asked = {"task": task.name, "--generate": options.source is None, **settings(task, options)}
    there = {**manifest, "--generate": manifest.get("origin") == "generated"}
    if options.source is None:
        asked["examples"] = options.examples or sum(task.sizes.values())
        there["examples"] = sum(split.get("examples", 0) for split in manifest["splits"].values())
    else:
        if options.length:
            asked["length"] = options.length
    check_prepared_with(folder, there, asked)
    if options.source is not None:
        source = find_source(task, options.source)
        check_files(folder, manifest, source.path, _many_files(manifest, source))


def _many_files(manifest: dict, source: TaskFiles) -> dict[str, str]:
    """The hash of all files in a folder, where `manifest` sums up those that the data were made from."""
    if source.path.is_file() or not any(name.endswith(SUMMED) for name in manifest.get("sources", {})):
        return {}
    print(f"Comparing {source.path} with the files that the data were made from ...", flush=True)
    wanted = partial(is_of_pathfinder, source.task.side) if source.task.is_image else is_review
    for _ in source.files(wanted):
        pass
    return source.fingerprints()


class _Builder:
    """Makes the folder of a task; `blocks` is where generated data are kept meanwhile."""

    def __init__(self, task: LraTask, options: argparse.Namespace, blocks: Path) -> None:
        self.task = task
        self.options = options
        self.blocks = blocks
        self.length = options.length or task.lengths.get(options.pipeline, task.length)

    def build(self, folder: Path) -> dict:
        """Fill the folder; returns its manifest."""
        task, options = self.task, self.options
        source = find_source(task, options.source) if options.source else None
        if source:
            print(f"Reading {source.path} ...", flush=True)
        write = self._images if task.is_image else self._tokens
        with source.reading() if source else nullcontext():
            records, details = write(source, folder)
        origin = self._origin(records) if source else "generated"
        if origin == SAMPLE and not options.partial:
            counts = ", ".join(f"{len(record.labels):,} {split}" for split, record in records.items())
            raise UserError(
                f"{options.source} holds {counts} examples of {task.name}, not those published; "
                f"get the whole files, {task.origin}, or take these as they are with --partial"
            )
        made = {
            "length": self.length,
            "origin": origin,
            **settings(task, options),
            **details,
            "verified": source.verified if source else None,
            "sources": source.fingerprints() if source else {},
        }
        return write_description(folder, task, records, made)

    def _origin(self, records: dict[str, SplitRecord]) -> str:
        sizes = {split: len(records[split].labels) if split in records else 0 for split in SPLITS}
        if self.task.name == "text":  # held-out examples come from train
            sizes = {"train": sizes["train"] + sizes["valid"], "valid": 0, "test": sizes["test"]}
        return "published" if sizes == self.task.sizes else SAMPLE

    def _tokens(
        self, source: TaskFiles | None, folder: Path
    ) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
        task, options = self.task, self.options
        state_space = options.pipeline == STATE_SPACE
        counted = ["train"]
        symbols: Symbols
        if task.name == "listops":
            symbols = listops.ListOpsRows(self.length, options.close_brackets, state_space)
            if source:
                records = write_files(
                    source, folder, listops.FILES, listops.read_expressions, symbols, "expressions"
                )
            else:
                sizes, blocks = self._generated(
                    partial(listops.draw_block, options.seed), listops.BLOCK, "expressions"
                )
                records = listops.write_generated(folder, sizes, blocks, symbols)
        else:
            symbols = ByteSymbols(self.length)
            if state_space:
                symbols = CharacterSymbols(self.length, LEAST_OCCURRENCES[task.name])
            if task.name == "text":
                records = write_text(source, folder, symbols, options.valid_fraction, options.seed)
                counted = ["train", "valid"]  # both are the published train
            else:
                records = write_files(source, folder, PAIR_FILES, read_pairs, symbols, "pairs")
        stems = {split: [f"{split}.{name}" for name in task.inputs] for split in records}
        every = [stem for names in stems.values() for stem in names]
        seen = [stem for split in counted for stem in stems.get(split, [])]
        return records, {"vocabulary": symbols.finish(folder, every, seen)}

    def _images(
        self, source: TaskFiles | None, folder: Path
    ) -> tuple[dict[str, SplitRecord], dict[str, Any]]:
        task, options = self.task, self.options
        if source and task.name == "image":
            return write_image(source, folder, options.seed), {}
        if source:
            records, skipped = write_pathfinder(source, folder, options.seed, options.skip_empty)
            return records, {"skipped_empty_images": skipped}
        sizes, blocks = self._generated(
            partial(pathfinder.draw_block, task.side, options.seed), pathfinder.BLOCK, "images"
        )
        images = ((label, image) for block in blocks for label, image in zip(*block.values(), strict=True))
        return {
            split: write_pixels(folder, split, size, images, task.length) for split, size in sizes.items()
        }, {}

    def _generated(self, make: MakeBlock, size: int, unit: str) -> tuple[dict[str, int], "BlockStore"]:
        """The sizes of the splits, and the blocks of `size` that they come from."""
        sizes = self.task.split_sizes(self.options.examples or sum(self.task.sizes.values()))
        store = BlockStore(self.blocks, make, size, unit, self.options.processes)
        store.require(-(-sum(sizes.values()) // size))
        return sizes, store


@dataclass(frozen=True)
class BlockStore:
    """Generated data: the blocks that `make` makes, number by number, in files of `folder`.

    `make` is called in worker processes; a block holds `size` of `unit`. Each block has its own random
    numbers: the data depend neither on the number of processes nor on interruptions.
    """

    folder: Path
    make: MakeBlock
    size: int
    unit: str
    processes: int

    def __iter__(self) -> Iterator[Block]:
        """Endless iterator over the blocks; generates missing ones."""
        for number in itertools.count():
            if not self._path(number).is_file():
                self.require(number + 1)
            with np.load(self._path(number)) as arrays:
                yield dict(arrays)

    def require(self, count: int) -> None:
        """Generate the missing ones of the first `count` blocks, and print the speed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = [number for number in range(count) if not self._path(number).is_file()]
        if len(missing) < count:
            print(f"Resuming: {(count - len(missing)) * self.size:,} {self.unit} are there.", flush=True)
        if not missing:
            return
        start, cpu = time.monotonic(), _cpu_seconds()
        try:
            with worker_pool(min(self.processes, len(missing))) as pool:
                jobs = [pool.submit(_make_file, self.make, number, self._path(number)) for number in missing]
                reported = start
                for done, job in enumerate(as_completed(jobs), 1):
                    job.result()
                    if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
                        reported = time.monotonic()
                        self._report(done, len(missing), reported - start)
        except BrokenProcessPool:
            raise UserError(
                "a generating process was killed, perhaps because memory ran out; run the same command again "
                "with fewer --processes to resume"
            ) from None
        made, seconds, cpu = len(missing) * self.size, time.monotonic() - start, _cpu_seconds() - cpu
        print(
            f"Generated {made:,} {self.unit} in {seconds:,.1f} s with {self.processes} process(es): "
            f"{made / seconds:,.1f} a second, {made / cpu:,.1f} a second of CPU time.",
            flush=True,
        )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npz"

    def _report(self, done: int, wanted: int, seconds: float) -> None:
        made = done * self.size
        left = tqdm.format_interval((wanted - done) * seconds / done)
        print(
            f"  {made:,} of {wanted * self.size:,} {self.unit}, {made / seconds:,.1f} a second, {left} left",
            flush=True,
        )


def _make_file(make: MakeBlock, number: int, path: Path) -> None:
    content = io.BytesIO()
    np.savez(content, **make(number))
    write_atomically(path, content.getvalue())


def _cpu_seconds() -> float:
    """CPU seconds of the worker processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


ELSE = "get it another way and name it with --from"


def main(arguments: Namespace) -> None:
    """Prepare the tasks, or check the existing ones."""
    tasks = chosen_tasks(arguments)

    check_output_folder(arguments.dest, "--dest")
    if arguments.url:
        arguments.source = fetched(arguments.url, arguments.dest)
    missing = []
    for task in tasks:
        try:
            folder, manifest = prepare_task(task, arguments)
        except MissingFiles as error:
            if len(tasks) == 1:
                raise
            print(f"{task.name} is left out: {error}", flush=True)
            missing.append(task.name)
        else:
            print(f"{folder} is ready: {describe(manifest)}", flush=True)
    if missing:
        raise UserError(f"{', '.join(missing)} not prepared, because files are missing; see above")


def fetched(url: str, dest: Path) -> Path:
    """The archive at `url`, in DEST/downloads, where the next preparation finds it.

    Resumes an interrupted download. An archive named like an original must have its sha256, if that is known.

    Raises:
        UserError: the address names no file, gives none, or gives another file than the original.
    """
    name = PurePosixPath(urlsplit(url).path).name
    if not name:
        raise UserError(f"--url {url} names no file")
    path = dest / "downloads" / address_mark(url) / name
    fetch(url, path, ELSE)
    known = {file: facts.sha256 for corpus in CORPORA.values() for file, facts in corpus.files.items()}
    if (expected := known.get(name)) and (found := sha256_of(path)) != expected:
        path.unlink()
        raise UserError(
            f"{url} sent another {name} than the published one (sha256 {found[:12]}, not "
            f"{expected[:12]}), now removed; {ELSE}"
        )
    return path


def chosen_tasks(arguments: Namespace) -> list[LraTask]:
    """The tasks to prepare; UserError for options that do not fit them or each other."""
    tasks = lra_tasks(arguments.task)
    if arguments.generate:
        tasks = [task for task in tasks if task.generated]
        if not tasks:
            raise UserError(f"{arguments.task} cannot be generated; give its files with --from")
    elif arguments.examples is not None:
        raise UserError("--examples is the size of generated data; give it with --generate")
    if arguments.length is not None and arguments.task != "text":
        raise UserError(f"--length {arguments.length} is for text only; leave it out for {arguments.task}")
    if not arguments.close_brackets and arguments.pipeline == STATE_SPACE:
        raise UserError("the state-space pipeline keeps `]`; drop one of the two options")
    if not 0 <= arguments.valid_fraction < 1:
        raise UserError(f"--valid-fraction {arguments.valid_fraction} must be at least 0 and less than 1")
    if arguments.processes < 1 or arguments.seed < 0:
        raise UserError("--processes must be at least 1 and --seed at least 0")
    for task in tasks:
        if arguments.examples is not None and min(task.split_sizes(arguments.examples).values()) < 1:
            raise UserError(f"--examples {arguments.examples} is too few for three splits of {task.name}")
    return tasks


def describe(manifest: dict) -> str:
    """One line per split, for people."""
    tokens = f", dictionary of {manifest['vocabulary']:,}" if "vocabulary" in manifest else ""
    lines = [f"{manifest['origin']}, pipeline {manifest['pipeline']}{tokens}"]
    for name, split in manifest["splits"].items():
        classes = " ".join(f"{count:,}" for count in split["classes"].values())
        lines.append(
            f"  {name}: {split['examples']:,} examples, {split['shortest']:,} to {split['longest']:,} "
            f"positions; by class: {classes}"
        )
    return "\n".join(lines)
