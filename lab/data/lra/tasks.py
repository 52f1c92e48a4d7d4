"""The six tasks as published, and the files of one, read one after another from an archive or a folder."""

import bz2
import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from lab.data.published import CORPORA
from lab.errors import UserError
from lab.files import known_sha256

SKYFORMER = "skyformer"
STATE_SPACE = "state-space"
BOTH = "both"
PIPELINES = (SKYFORMER, STATE_SPACE)

OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""Openers by the first bytes of an archive. They verify the checksum of the content; tarfile does not."""
MOST_LISTED = 16
"""Input files that the manifest lists one by one; more are summed up."""
SUMMED = " files"
"""How the name of many files ends."""


def _origin(corpus: str) -> str:
    [(name, file)] = CORPORA[corpus].files.items()
    return f"{name} ({file.url})"


LRA_RELEASE = f"the benchmark's archive, {_origin('lra')}"


class MissingFiles(UserError):
    """The source lacks files of a task."""


@dataclass(frozen=True)
class LraTask:
    """One task; `sizes` counts the published examples of train, valid and test."""

    name: str
    classes: tuple[str, ...]
    length: int
    """The most positions a row may have, in Skyformer's pipeline."""
    sizes: dict[str, int]
    inputs: tuple[str, ...]
    archives: tuple[str, ...]
    """Patterns of the names of archives that hold it, for a folder of archives."""
    origin: str
    """Where the files come from, in words."""
    generated: bool = False
    """Whether its data can be generated."""
    side: int = 0
    """Pixels of a row of the image; 0 for tokens."""
    lengths: dict[str, int] = field(default_factory=dict)
    """The length where a pipeline has another one."""

    @property
    def is_image(self) -> bool:
        """Whether the input is pixels."""
        return bool(self.side)

    def split_sizes(self, count: int) -> dict[str, int]:
        """How many of `count` examples go to train, valid and test, in the published proportions."""
        total = sum(self.sizes.values())
        valid, test = (count * self.sizes[split] // total for split in ("valid", "test"))
        return {"train": count - valid - test, "valid": valid, "test": test}


DIGITS = tuple(str(digit) for digit in range(10))
CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PATHFINDER_SIZES = {"train": 160_000, "valid": 20_000, "test": 20_000}


def _pathfinder(name: str, side: int) -> LraTask:
    return LraTask(
        name=name,
        classes=("different contours", "same contour"),
        length=side * side,
        sizes=PATHFINDER_SIZES,
        inputs=("pixels",),
        archives=("lra_release*gz", f"pathfinder{side}*.tar.gz"),
        origin=f"{LRA_RELEASE}, folder pathfinder{side}/curv_contour_length_14",
        generated=True,
        side=side,
    )


TASKS = {
    task.name: task
    for task in (
        LraTask(
            name="listops",
            classes=DIGITS,
            length=2_000,
            sizes={"train": 96_000, "valid": 2_000, "test": 2_000},
            inputs=("input0",),
            archives=("lra_release*gz", "listops-1000*.tar.gz"),
            origin=f"{LRA_RELEASE}, folder listops-1000",
            generated=True,
        ),
        LraTask(
            name="text",
            classes=("neg", "pos"),
            length=4_000,
            sizes={"train": 25_000, "valid": 0, "test": 25_000},
            inputs=("input0",),
            archives=("aclImdb*.tar.gz",),
            origin=_origin("imdb"),
            lengths={STATE_SPACE: 4_096},
        ),
        LraTask(
            name="retrieval",
            classes=("no citation", "citation"),
            length=4_000,
            sizes={"train": 147_086, "valid": 18_090, "test": 17_437},
            inputs=("input0", "input1"),
            archives=("lra_release*gz", "retrieval*.tar.gz"),
            origin=f"{LRA_RELEASE}, folder tsv_data",
        ),
        LraTask(
            name="image",
            classes=CIFAR_CLASSES,
            length=1_024,
            sizes={"train": 45_000, "valid": 5_000, "test": 10_000},
            inputs=("pixels",),
            archives=("cifar-10-binary*.tar.gz",),
            origin=_origin("cifar-10"),
            side=32,
        ),
        _pathfinder("pathfinder", 32),
        _pathfinder("path-x", 128),
    )
}

KNOWN_ARCHIVES = {file.sha256 for corpus in ("imdb", "cifar-10") for file in CORPORA[corpus].files.values()}
"""sha256 of the originals, where it is known."""


def lra_tasks(name: str) -> list[LraTask]:
    """The task of that name, or all of them for "all"; UserError lists the names."""
    if name == "all":
        return list(TASKS.values())
    if name not in TASKS:
        raise UserError(f"there is no task {name}; choose one of {', '.join(TASKS)}, all")
    return [TASKS[name]]


Wanted = Callable[[PurePosixPath], bool]


class TaskFiles:
    """An archive or a folder that holds the files of `task`."""

    def __init__(self, task: LraTask, path: Path) -> None:
        self.task = task
        self.path = path
        self.hashes: dict[str, str] = {}
        self.recognised = False
        """Whether the files that were read are the published ones, whatever archive holds them."""

    def files(self, wanted: Wanted) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
        """Path and content of each file wanted, in any order; a content is open until the next one."""
        if self.path.is_dir():
            yield from self._files_of_folder(wanted)
        else:
            yield from self._files_of_archive(wanted)

    def _files_of_folder(self, wanted: Wanted) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
        root = self.path.resolve()
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if not wanted(PurePosixPath(path.as_posix())):
                    continue
                with path.open("rb") as content:
                    yield PurePosixPath(path.as_posix()), content
                    content.seek(0)
                    digest = hashlib.file_digest(content, "sha256").hexdigest()
                self.hashes[path.relative_to(root).as_posix()] = digest

    def _files_of_archive(self, wanted: Wanted) -> Iterator[tuple[PurePosixPath, BinaryIO]]:
        self.hashes[self.path.name] = known_sha256(self.path)
        with self._opened() as content:
            with tarfile.open(fileobj=content, mode="r|") as archive:
                for member in archive:
                    path = PurePosixPath(member.name)
                    if member.isfile() and wanted(path):
                        yield path, archive.extractfile(member)
            while content.read(1 << 20):  # to the checksum at the end
                pass

    def _opened(self) -> BinaryIO:
        """The archive, decompressed."""
        with self.path.open("rb") as file:
            beginning = file.read(8)
        for magic, opener in OPENERS.items():
            if beginning.startswith(magic):
                return opener(self.path, "rb")
        return self.path.open("rb")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turns the exceptions of reading a file that is damaged or not an archive into a UserError."""
        try:
            yield
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's, not the archive's
                raise
            raise UserError(
                f"{self.path} is damaged or not a tar archive ({error}); {self.task.name} comes from "
                f"{self.task.origin}"
            ) from None

    def missing(self, what: str) -> MissingFiles:
        """The error for a missing file."""
        return MissingFiles(
            f"{self.path} holds no {what}; {self.task.name} comes from {self.task.origin}: name that "
            "archive, or the folder with its files, with --from"
        )

    def fingerprints(self) -> dict[str, str]:
        """sha256 of each input file by name; many files share one hash over the lines `SHA256  NAME`."""
        if len(self.hashes) <= MOST_LISTED:
            return dict(sorted(self.hashes.items()))
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.hashes.items()))
        return {f"{len(self.hashes):,}{SUMMED}": hashlib.sha256(lines.encode()).hexdigest()}

    @property
    def verified(self) -> bool | None:
        """True if the archive, or its files, have the known sha256 of the original; None otherwise."""
        known = self.recognised or any(digest in KNOWN_ARCHIVES for digest in self.hashes.values())
        return True if known else None


def find_source(task: LraTask, path: Path) -> TaskFiles:
    """`path` itself, or the archive of `task` in it if it is a folder of archives."""
    if path.is_file():
        return TaskFiles(task, path)
    if not path.is_dir():
        raise UserError(f"--from: there is no {path}")
    for pattern in task.archives:
        if found := sorted(path.glob(pattern)):
            return TaskFiles(task, found[0])
    return TaskFiles(task, path)
