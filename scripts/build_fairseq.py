"""Build the wheel of fairseq-fixed that `.venv` uses: `python scripts/build_fairseq.py FOLDER`.

Run it with the Python that will use the wheel; torch, numpy, Cython, setuptools and wheel must be installed.
pip fetches the sources that requirements.txt pins. They are checked against their sha256 and changed in six
places:

* Three of the six extensions are left out. They compile torch's headers for minutes, and only models that
  this project does not have use them (BASE layers, Levenshtein and simultaneous translation).
* The other three are compiled with fewer optimisations and no debug information, in half the time.
* Python 3.14 prints `Optional[int]` as `int | None`, in which fairseq does not recognise an option's type.
* Python 3.14 checks the help of each option when it is added, and one of hydra's is not a string:
  `fairseq-hydra-train` could not start.
* Every command asked for tensorboardX, though a task that this project does not have can use tensorboard.
* `fairseq-preprocess` and `fairseq-score`, which load no plugin, ended in a traceback where a file was
  missing or would have been replaced.

The wheel's version ends in `+repaired` and a fingerprint of the changes: it satisfies the pin, and pip
prefers it to the package index's. A wheel that exists is kept.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

SHA256 = "c607577a54ab30e2ee0f0b0a754ea5cdbc6ad0a9f99a1726638a2201445bc1cc"
REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
CHECKS_OF_PREPROCESS = """\
    args = parser.parse_args()
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    named = [(name, getattr(args, name)) for name in ("srcdict", "tgtdict") if getattr(args, name)]
    for name in ("trainpref", "validpref", "testpref"):
        given = getattr(args, name) or ""
        prefixes = [given] if name == "trainpref" else given.split(",")
        named += [(name, _file_name(prefix, lang)) for prefix in prefixes if prefix for lang in languages]
    for name, path in named:
        if not os.path.isfile(path):
            sys.exit(f"error: no file {path}; check --{name}")
    if not (args.trainpref or args.srcdict or args.tgtdict):
        sys.exit("error: there is no text to make a dictionary of; give --trainpref or --srcdict")
    if os.path.isfile(args.destdir):
        sys.exit(f"error: --destdir {args.destdir} is a file; name a folder")
    for name, lang in zip(("srcdict", "tgtdict"), languages):
        path = _dict_path(lang, args.destdir)
        if not getattr(args, name) and os.path.exists(path):
            sys.exit(f"error: {path} is there; name another --destdir, or keep it with --{name} {path}")
    main(args)"""
CHECKS_OF_SCORE = """\
    for option, path in (("--sys", args.sys), ("--ref", args.ref)):
        if (option, path) != ("--sys", "-") and not os.path.isfile(path):
            sys.exit(f"error: no file {path}; check {option}")"""
# File, text that it holds once (a pattern), replacement.
CHANGES = [
    ("setup.py", r"^from torch\.utils import cpp_extension\n", ""),
    ("setup.py", r"^extensions\.extend\(\n(.*\n)*?(?=cmdclass)", ""),
    ("setup.py", r"^cmdclass = .*$", "cmdclass = {}"),
    ("setup.py", r"(?<=^    extra_compile_args = \[\"-std=c\+\+11\", )\"-O3\"", '"-O1", "-g0"'),
    ("setup.py", r"(?<=^        version=version),$", ' + "+LABEL",'),
    (
        "fairseq/dataclass/utils.py",
        r"^    typestring = str\(field_type\)\n    if re\.match\((.*\n)*?.*\"typing\.Optional\"\):$",
        '    if type(None) in getattr(field_type, "__args__", ()):',
    ),
    (
        "fairseq_cli/hydra_train.py",
        r"^import hydra$",
        "import argparse\nimport hydra\nargparse._ActionsContainer._check_help = lambda self, action: None",
    ),
    (
        "fairseq/tasks/text_to_speech.py",
        r"^    from tensorboardX import SummaryWriter$",
        "    from torch.utils.tensorboard import SummaryWriter",
    ),
    (
        "fairseq_cli/preprocess.py",
        r"^    args = parser\.parse_args\(\)\n    main\(args\)$",
        CHECKS_OF_PREPROCESS,
    ),
    (
        "fairseq_cli/score.py",
        r"^    assert args\.sys == \"-\" or (.*\n)*?    assert os\.path\.exists\(args\.ref\).*$",
        CHECKS_OF_SCORE,
    ),
]
LABEL = "repaired" + hashlib.sha256(repr((SHA256, CHANGES)).encode()).hexdigest()[:8]


class BuildError(Exception):
    """An error whose message is one sentence for the user."""


def requirement() -> str:
    """The line of requirements.txt that pins fairseq."""
    [line] = re.findall(r"^fairseq-fixed==.*$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    return line


def repaired() -> str:
    """What pip installs from the folder of the wheel."""
    return f"{requirement()}+{LABEL}"


def pip(*arguments: str | Path, **environment: str) -> None:
    """Run this Python's pip, with its output on stderr."""
    command = [sys.executable, "-P", "-m", "pip", *map(str, arguments)]
    if subprocess.run(command, env={**os.environ, **environment}, stdout=sys.stderr, check=False).returncode:
        raise BuildError(f"pip {arguments[0]} failed; see its message above")


def fetch(folder: Path) -> Path:
    """The archive of the sources, from where pip is configured to look."""
    source_only = ("--no-deps", "--no-build-isolation", "--no-binary", "fairseq-fixed")
    pip("download", *source_only, "--dest", folder, requirement())
    [archive] = folder.iterdir()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise BuildError(f"{archive.name} has the sha256 {found} instead of {SHA256}; check pip's index")
    return archive


def unpack(archive: Path, folder: Path) -> Path:
    """The folder of the sources below `folder`."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = lambda member, path: member  # the sha256 vouches for all paths
        tar.extractall(folder)
    [sources] = folder.iterdir()
    return sources


def repair(sources: Path) -> None:
    """Make the changes."""
    for name, pattern, replacement in CHANGES:
        path = sources / name
        text = path.read_text(encoding="utf-8")
        text, count = re.subn(pattern, replacement.replace("LABEL", LABEL), text, flags=re.MULTILINE)
        if count != 1:
            raise BuildError(f"{name} of {requirement()} is not as expected; nothing is built")
        path.write_text(text, encoding="utf-8")


def build(folder: Path) -> Path:
    """The wheel in `folder`, built unless it is there; wheels with earlier changes are removed."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = re.sub(r"\W", "_", sysconfig.get_platform())
    name = f"{repaired().replace('-', '_').replace('==', '-')}-{python}-{python}-{platform}.whl"
    if (folder / name).is_file():
        return folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as temporary:
        work = Path(temporary)
        sources = unpack(fetch(work / "archive"), work / "sources")
        repair(sources)
        settings = work / "distutils.cfg"
        settings.write_text(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n", encoding="utf-8")
        pip(
            *("wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"),
            *("--wheel-dir", work / "wheel", sources),
            DIST_EXTRA_CONFIG=str(settings),
        )
        [wheel] = (work / "wheel").iterdir()
        for older in folder.glob("fairseq_fixed-*.whl"):
            older.unlink()
        return wheel.replace(folder / wheel.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build the repaired wheel of the pinned fairseq-fixed for this Python."
    )
    parser.add_argument("folder", type=Path, help="where to write the wheel")
    try:
        print(build(parser.parse_args().folder))
    except KeyboardInterrupt:
        print("\nerror: interrupted; the same command starts again", file=sys.stderr)
        sys.exit(130)
    except BuildError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}; name another folder")


if __name__ == "__main__":
    main()
