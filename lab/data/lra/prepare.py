"""Tasks of the Long Range Arena for --task lra, from their original files or their generators."""

from argparse import Namespace
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lab.data.lra.building import prepare_task
from lab.data.lra.tasks import STATE_SPACE, LraTask, MissingFiles, lra_tasks
from lab.data.published import CORPORA, address_mark, fetch
from lab.errors import UserError
from lab.files import sha256_of
from lab.outputs import check_output_folder

ELSE = "get it another way and name it with --from"


def main(arguments: Namespace) -> None:
    """Prepare the tasks, or check what is there."""
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
        raise UserError(f"{', '.join(missing)} not prepared, for want of files; see above")


def fetched(url: str, dest: Path) -> Path:
    """The archive at `url`, in DEST/downloads, where the next preparation finds it.

    Resumes what a killed run has begun. An archive whose name is that of an original with a known sha256
    must have it; of others nobody has published one.

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
        raise UserError(f"--length {arguments.length} is for text alone; leave it out for {arguments.task}")
    if not arguments.close_brackets and arguments.pipeline == STATE_SPACE:
        raise UserError("the state-space pipeline keeps `]`; drop one of the two options")
    if not 0 <= arguments.valid_fraction < 1:
        raise UserError(f"--valid-fraction {arguments.valid_fraction} is not at least 0 and less than 1")
    if arguments.processes < 1 or arguments.seed < 0:
        raise UserError("--processes must be at least 1 and --seed at least 0")
    for task in tasks:
        if arguments.examples is not None and min(task.split_sizes(arguments.examples).values()) < 1:
            raise UserError(f"--examples {arguments.examples} is too few for three splits of {task.name}")
    return tasks


def describe(manifest: dict) -> str:
    """One line a split, for people."""
    tokens = f", dictionary of {manifest['vocabulary']:,}" if "vocabulary" in manifest else ""
    lines = [f"{manifest['origin']}, pipeline {manifest['pipeline']}{tokens}"]
    for name, split in manifest["splits"].items():
        classes = " ".join(f"{count:,}" for count in split["classes"].values())
        lines.append(
            f"  {name}: {split['examples']:,} examples, {split['shortest']:,} to {split['longest']:,} "
            f"positions; by class: {classes}"
        )
    return "\n".join(lines)
