"""An archive of the Long Range Arena from an address of the user's choice."""

import hashlib
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pipeline.data.downloads import download
from pipeline.data.published import CORPORA
from pipeline.errors import UserError
from pipeline.files import sha256_of, shown_path

ELSE = "get it another way and name it with --from"


def fetch(url: str, dest: Path) -> Path:
    """The archive at `url`, in DEST/downloads, where the next preparation finds it.

    Resumes what a killed run has begun. An archive whose name is that of an original with a known sha256
    must have it; of others nobody has published one.

    Raises:
        UserError: the address names no file, gives none, or gives another file than the original.
    """
    name = PurePosixPath(urlsplit(url).path).name
    if not name:
        raise UserError(f"--url {url} names no file")
    # A folder for each address: two sources are never mixed in one file.
    path = dest / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:8] / name
    if path.is_file():
        print(f"Using {shown_path(path)}, downloaded earlier.", flush=True)
        return path
    print(f"Downloading {url} to {shown_path(path)} ...", flush=True)
    download(url, path, ELSE)
    known = {file: facts.sha256 for corpus in CORPORA.values() for file, facts in corpus.files.items()}
    if (expected := known.get(name)) and (found := sha256_of(path)) != expected:
        path.unlink()
        raise UserError(
            f"{url} sent another {name} than the published one (sha256 {found[:12]}, not "
            f"{expected[:12]}), now removed; {ELSE}"
        )
    return path
