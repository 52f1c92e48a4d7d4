"""Prepare a task of the Long Range Arena for --task lra, from its original files or its generator.

TASK is listops, text, retrieval, image, pathfinder, path-x, or all. The result is a folder of --dest:
listops, text, retrieval (Skyformer's pipeline: bytes), listops-state-space, text-state-space,
retrieval-state-space (--pipeline state-space: characters, an end token), listops-no-brackets, and
image, pathfinder, path-x (pixels, for both pipelines).

    data-prep/lra.sh listops --generate --dest data/lra
    data-prep/lra.sh text --from aclImdb_v1.tar.gz --dest data/lra
    data-prep/lra.sh image --url https://... --dest data/lra
    data-prep/lra.sh all --from ~/Downloads/lra --dest data/lra
"""

import argparse
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lab.console import Parser, count
from lab.data.lra.building import prepare_task
from lab.data.lra.tasks import PIPELINES, SKYFORMER, STATE_SPACE, LraTask, MissingFiles, lra_tasks
from lab.data.preparation import add_dest
from lab.data.published import CORPORA, address_mark, fetch
from lab.errors import UserError
from lab.files import sha256_of
from lab.outputs import check_output_folder
from lab.provenance import usable_cores

ELSE = "get it another way and name it with --from"
EPILOG = """
--from takes the original archive (lra_release.gz for listops, retrieval, pathfinder, path-x;
aclImdb_v1.tar.gz for text; cifar-10-binary.tar.gz for image), a folder with the unpacked files, or a
folder with the archives. A folder that is ready is left as it is; after an interruption the same
command resumes: generated data block by block, other data task by task.
"""


def main() -> None:
    arguments = parse_arguments()
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


def parse_arguments() -> argparse.Namespace:
    parser = Parser("data-prep/lra.sh", __doc__, epilog=EPILOG)
    parser.add_argument(
        "task", metavar="TASK", help="listops, text, retrieval, image, pathfinder, path-x, all"
    )
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument("--from", dest="source", type=Path, metavar="PATH", help="archive or folder (below)")
    origin.add_argument("--url", metavar="URL", help="address of the archive, kept in FOLDER/downloads")
    origin.add_argument(
        "--generate", action="store_true", help="listops, pathfinder and path-x need no files"
    )
    add_dest(parser)
    parser.add_argument(
        "--partial",
        action="store_true",
        help="take other files than the whole published ones, such as a sample; every record then says so",
    )
    parser.add_argument(
        "--pipeline", choices=PIPELINES, default=SKYFORMER, help="tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--listops-drop-close-brackets",
        action="store_false",
        dest="close_brackets",
        help="leave `]` out as Skyformer's data does; the expressions then have no value any more",
    )
    parser.add_argument(
        "--valid-fraction",
        type=float,
        default=0.1,
        metavar="F",
        help="share of text's train reviews that becomes valid; 0 for no valid split (default: %(default)s)",
    )
    parser.add_argument(
        "--length",
        type=count,
        metavar="N",
        help="cut text's reviews after N bytes or characters; the folder is then text-N (default: the "
        "benchmark's 4,000, state-space 4,096)",
    )
    parser.add_argument(
        "--seed", type=int, default=42, help="of generators and splits (default: %(default)s)"
    )
    parser.add_argument(
        "--examples", type=int, metavar="N", help="how many to generate (default: as many as published)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=usable_cores(),
        metavar="N",
        help="of the generators; they change nothing but the time (default: one per core)",
    )
    parser.add_argument(
        "--skip-empty-images",
        action="store_true",
        dest="skip_empty",
        help="leave zero-byte images of Pathfinder out",
    )
    return parser.parse_args()


def chosen_tasks(arguments: argparse.Namespace) -> list[LraTask]:
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
