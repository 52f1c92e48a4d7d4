"""The files of a task, in an archive or a folder, read one after another."""

import bz2
import gzip
import hashlib
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pipeline.data.lra.tasks import KNOWN_ARCHIVES, LraTask, MissingFiles
from pipeline.errors import UserError
from pipeline.files import known_sha256

OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""By what a compressed archive begins with; these check what was compressed, tarfile does not."""
MOST_LISTED = 16
"""Input files that the manifest lists one by one; more are summed up."""

Wanted = Callable[[PurePosixPath], bool]


class Source:
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
        """Turns what a damaged archive, or none at all, raises while it is read into a UserError."""
        try:
            yield
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the system's, not the archive's
                raise
            raise UserError(
                f"{self.path} is damaged or no tar archive ({error}); {self.task.name} comes from "
                f"{self.task.origin}"
            ) from None

    def missing(self, what: str) -> MissingFiles:
        """The error for a file that is not there."""
        return MissingFiles(
            f"{self.path} holds no {what}; {self.task.name} comes from {self.task.origin}: name that "
            "archive, or the folder with its files, with --from"
        )

    def fingerprints(self) -> dict[str, str]:
        """sha256 by name of what was read; of many files one, over the lines `SHA256  NAME`."""
        if len(self.hashes) <= MOST_LISTED:
            return dict(sorted(self.hashes.items()))
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self.hashes.items()))
        return {f"{len(self.hashes):,} files": hashlib.sha256(lines.encode()).hexdigest()}

    @property
    def verified(self) -> bool | None:
        """True if what was read is an original of known sha256, archive or files; None otherwise."""
        known = self.recognised or any(digest in KNOWN_ARCHIVES for digest in self.hashes.values())
        return True if known else None


def find_source(task: LraTask, path: Path) -> Source:
    """`path` itself, or the archive of `task` in it if it is a folder of archives."""
    if path.is_file():
        return Source(task, path)
    if not path.is_dir():
        raise UserError(f"--from: there is no {path}")
    for pattern in task.archives:
        if found := sorted(path.glob(pattern)):
            return Source(task, found[0])
    return Source(task, path)
