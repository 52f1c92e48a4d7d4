"""Make the project's virtual environment `.venv` once; find out in a moment that it is up to date.

Standard library only. With `--ready`, run by `.venv`'s own Python, the exit status is 0 if nothing needs to
be done. Otherwise a suitable base Python (lib.sh looks for one) runs it and makes `.venv`. `PYTHON` and
`TORCH_SPEC` choose interpreter and torch; without them a finished `.venv` keeps those it has.
`WHEELHOUSE` names a folder of wheelhouse.sh: everything is installed from it, nothing from the network.
uv installs the packages, as pip's settings say; where uv is not available or fails, pip installs them.

`.venv/ready.json` is written last and records the sources of the environment. Without it `.venv` is an
interrupted set-up and is created again; one with other content is updated.
"""

import ast
import fcntl
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
READY = VENV / "ready.json"
UNFINISHED = VENV / "unfinished.json"  # what READY was, while it is brought up to date
LOG = VENV / "setup.log"
DEFAULT_TORCH = "torch==2.13.0"
INPUTS = (
    *("requirements.txt", "pyproject.toml", "setup.py", "build_kernels.py", "build_machine.py"),
    "scripts/build_fairseq.py",
)
PINNED = ROOT / "requirements.txt"
BUILD_NEEDS = ("numpy", "Cython", "setuptools", "wheel")
UV = VENV / "bin" / "uv"
# Settings of pip that choose versions and sources: uv's options and variables for them.
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
UV_VARIABLES = {"cert": "SSL_CERT_FILE", "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
INDEXES = ("index-url", "extra-index-url", "find-links")
# Settings that do not affect this.
OTHER_SETTINGS = {
    *("config-file", "cache-dir", "disable-pip-version-check", "log", "no-cache-dir", "no-color", "no-input"),
    *("break-system-packages", "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action"),
    "verbose",
}
STEPS = 5  # of `installation`
POLL_SECONDS, SHOW_SECONDS = 0.1, 15
WHEELS = VENV / "wheels"
KERNELS = "causal_linear_attention/csrc"

# Patterns in a failed installation's log, and their meaning for the user.
CAUSES = {
    "No space left on device|Disk quota exceeded": (
        "the disk is full; free about 4 GB and run the same command again"
    ),
    "Connection refused|name resolution|Name or service not known|Network is unreachable"
    "|Read timed out|ConnectTimeout|ProxyError|Max retries exceeded|SSLError": (
        "the package index cannot be reached; check the network and pip's index (pip config list)"
    ),
    "looking in links: .*no matching distribution": (
        "WHEELHOUSE lacks a wheel for this Python and machine; make it again on one of the same kind"
    ),
    "ResolutionImpossible": (
        "TORCH_SPEC and requirements.txt need different versions of a package; choose another torch"
    ),
    "from versions: none": (
        "the package index cannot be reached, or lacks packages for this Python; check the network "
        "and pip's index (pip config list)"
    ),
    "No matching distribution found|Could not find a version": (
        "the package index lacks this version for this Python; check PYTHON and TORCH_SPEC"
    ),
    "Invalid requirement": "TORCH_SPEC is not a requirement such as torch==2.13.0",
}


class SetupError(Exception):
    """An error whose message is one sentence for the user."""


class Step(NamedTuple):
    """Commands that run side by side, and the fallback if one of them fails; if None, the set-up ends."""

    title: str
    commands: list[list[Any]]
    instead: list[list[Any]] | None = None


def wanted(previous: dict[str, Any]) -> dict[str, Any]:
    """The wanted sources of `.venv`; without a choice, those of the present one."""
    python = os.environ.get("PYTHON")
    torch = os.environ.get("TORCH_SPEC")
    hashed = runpy.run_path(str(ROOT / "causal_linear_attention" / "sources.py"))["fingerprint"]
    inputs = [(ROOT / name).read_bytes() for name in INPUTS]
    contents = b"\0".join([*inputs, hashed(ROOT / KERNELS).encode()])
    want = {
        "root": str(ROOT),
        "python": f"{sys.version.split()[0]} in {sys.base_prefix}",
        "torch": torch or DEFAULT_TORCH,
        "torch_chosen": bool(torch),
        "inputs": hashlib.sha256(contents).hexdigest(),
    }
    if not python and previous.get("python") and previous.get("root") == want["root"]:
        want["python"] = previous["python"]
    if not torch and previous.get("torch_chosen"):
        want.update(torch=previous["torch"], torch_chosen=True)
    return want


def finished(record: Path | None = None) -> dict[str, Any]:
    """The sources of the finished `.venv`, by `READY` or another `record`; empty if there is none."""
    try:
        return json.loads((record or READY).read_text())
    except (OSError, ValueError):
        return {}


def recorded(record: Path | None = None) -> dict[str, Any]:
    """As `finished`, but empty if there is no `.venv` that runs."""
    try:
        subprocess.run([VENV_PYTHON, "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return {}
    return finished(record)


def is_ready() -> bool:
    """Whether `.venv`, whose own Python asks, is finished, up to date and of the Python that was chosen."""
    if python := os.environ.get("PYTHON"):
        found = shutil.which(python)
        if not found or os.path.realpath(found) != os.path.realpath(sys.executable):
            return False
    have = finished()
    return bool(have) and have == wanted(have)


def ensure() -> None:
    """Make `.venv` or bring it up to date, if need be."""
    if (have := recorded()) and have == wanted(have):
        return
    if not os.access(ROOT, os.W_OK):
        use_as_it_is(have)
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a file of whoever
    with os.fdopen(os.open(ROOT / ".venv.lock", flags, 0o666), "rb+", buffering=0) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Waiting for another set-up of .venv to end ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        have = recorded()
        before = have or recorded(UNFINISHED)
        want = wanted(before)
        if have != want:
            build(before, want)


def use_as_it_is(have: dict[str, Any]) -> None:
    """In another user's clone: use its `.venv` if that is finished, even if it is older than the sources."""
    if not have:
        raise SetupError(
            f"{VENV} is not set up and you may not write to {ROOT}; let its owner run this command once, or "
            "clone the project for yourself"
        )
    print(f"note: {VENV} is older than the sources and belongs to another user; it is used as it is")


def build(have: dict[str, Any], want: dict[str, Any]) -> None:
    """Install everything; into the `.venv` that is there if it was finished once and is of this Python."""
    check_compiler()
    check_wheelhouse()
    start = time.monotonic()
    print(f"Setting up {VENV} (log: {LOG})", flush=True)
    if all(have.get(key) == want[key] for key in ("root", "python")):
        if READY.exists():
            READY.replace(UNFINISHED)
        made = []
    else:
        remove_unfinished()
        VENV.mkdir()
        made = [Step("virtual environment", [[sys.executable, "-P", "-m", "venv", VENV]])]
    for i, step in enumerate(chain(made, installation(want["torch"])), start=1):
        run_step(step, f"[{i}/{len(made) + STEPS}] ")
    partial = READY.with_suffix(".part")
    partial.write_text(json.dumps(want, indent=2) + "\n")
    os.replace(partial, READY)
    UNFINISHED.unlink(missing_ok=True)
    print(f"Set up in {time.monotonic() - start:.0f} s.", flush=True)


def installation(torch: str) -> Iterator[Step]:
    """The steps inside the virtual environment; each is to run before the next is asked for."""
    python = [VENV_PYTHON, "-P"]
    pip = [*python, "-m", "pip", "install", "--no-input", "--no-build-isolation"]
    build, packages, offline = [], [], []
    if wheels := os.environ.get("WHEELHOUSE"):
        offline = ["--no-index", "--find-links", str(Path(wheels).absolute())]
    else:
        script = ROOT / "scripts" / "build_fairseq.py"
        build = [[*python, script, WHEELS]]
        packages = ["--find-links", WHEELS, runpy.run_path(str(script))["repaired"]()]
    only_wheels = ["--no-deps", "--only-binary", ":all:", "--retries", "1"]  # pip is as good if it fails
    yield Step("uv", [[*pip, *offline, *only_wheels, "-r", ROOT / "scripts" / "uv.txt"]], instead=[])
    uv = uv_install(bool(offline))

    def install(title: str, *words: Any) -> Step:
        by_pip = [[*pip, *offline, *words]]
        return Step(title, [[*uv, *offline, *words]], by_pip) if uv else Step(title, by_pip)

    yield install(f"{torch} and what builds fairseq", "-c", PINNED, torch, *BUILD_NEEDS)
    operator = [*pip, *offline, "--no-deps", "-e", ROOT]
    # Python compiles only imported modules: a third of torch's modules, where pip compiles all.
    modules = [*python, "-c", "import torch._dynamo"]
    yield Step(f"{'fairseq and ' if build else ''}attention operator, compiled", [*build, operator, modules])
    yield install("pinned packages", "-r", PINNED, *packages)
    yield Step("check", [[*python, "-c", "import torch._dynamo, fairseq_cli.train, causal_linear_attention"]])


def uv_install(offline: bool) -> list[Any]:
    """uv's command that installs as pip would by its settings; empty if uv is missing or cannot."""
    if not UV.exists():
        return []
    listed = subprocess.run(
        [VENV_PYTHON, "-P", "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    found = settings_of_pip(listed.stdout)
    if listed.returncode or found.keys() - UV_OPTIONS.keys() - UV_VARIABLES.keys() - OTHER_SETTINGS:
        return []
    command = ["env", *(f"{UV_VARIABLES[name]}={found[name]}" for name in UV_VARIABLES if name in found)]
    command += [UV, "pip", "install", "--no-config", "--python", VENV_PYTHON, "--no-build-isolation"]
    command += ["--index-strategy", "unsafe-best-match"]
    for name, option in UV_OPTIONS.items():
        if not (offline and name in INDEXES):
            command += [word for value in found.get(name, "").split() for word in (option, value)]
    return command


def settings_of_pip(listed: str) -> dict[str, str]:
    """What `pip config list` has printed, as pip takes it: its environment, then [install], then [global]."""
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listed.splitlines():
            name, _, value = line.removeprefix(section).partition("=")
            if line.startswith(section):
                found[name] = str(ast.literal_eval(value))
    return found


def check_compiler() -> None:
    """fairseq is compiled from C and C++."""
    compilers = (os.environ.get("CC") or "gcc", os.environ.get("CXX") or "g++")
    missing = [name for name in compilers if not shutil.which(name.split()[0])]
    if missing:
        raise SetupError(
            f"{' and '.join(missing)} not found, which fairseq's build needs; "
            "install it (Debian: apt-get install build-essential)"
        )
    crosses = runpy.run_path(str(ROOT / "build_machine.py"))["crosses"]
    for name, words in zip(("CC", "CXX"), map(str.split, compilers), strict=True):
        if crosses(words):
            raise SetupError(
                f"{name}={' '.join(words)} makes code for another processor; unset it for the set-up "
                "(scripts/build_wheel.sh makes a wheel with it)"
            )


def check_wheelhouse() -> None:
    """Every wheel must be the one that wheelhouse.sh has written."""
    if not (given := os.environ.get("WHEELHOUSE")):
        return
    folder = Path(given).absolute()
    try:
        lines = (folder / "SHA256SUMS").read_text().splitlines()
    except OSError:
        raise SetupError(f"WHEELHOUSE is {given}, which scripts/wheelhouse.sh has not written") from None
    for line in lines:
        expected, name = line.split(maxsplit=1)
        path = folder / name.strip()
        if not path.is_file():
            raise SetupError(f"{folder} lacks {path.name}; copy the folder again")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise SetupError(f"{path} is damaged; copy the folder again")


def remove_unfinished() -> None:
    """Clear the way for a new `.venv`; one that these scripts did not make is left alone."""
    if not VENV.exists() and not VENV.is_symlink():
        return
    if VENV.is_symlink() or (any(VENV.iterdir()) and not LOG.exists()):
        raise SetupError(f"{VENV} was not made by these scripts; rename or remove it")
    shutil.rmtree(VENV)


def run_step(step: Step, number: str) -> None:
    """Run it, showing the seconds; SetupError says why it failed."""
    start = time.monotonic()
    print(f"  {number}{step.title} ...", end="", flush=True)
    failed = run_together(step.commands, start)
    if failed and step.instead is not None:
        print(" with pip ..." if step.instead else " not to be had, pip installs", end="", flush=True)
        failed = run_together(step.instead, start)
    print(f" {time.monotonic() - start:.0f} s", flush=True)
    if failed:
        raise SetupError(f"the set-up failed at {number}{step.title}: {cause(*failed)}")


def run_together(commands: list[list[Any]], start: float) -> tuple[Path, int] | None:
    """Run them side by side, each with a log; that of the first to fail, and where its part of it begins."""
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    running: list[tuple[subprocess.Popen[bytes], Path, int]] = []
    shown = start
    try:
        for number, command in enumerate(commands):
            log = LOG.with_stem(f"{LOG.stem}-{number + 1}") if number else LOG
            with log.open("ab") as file:
                process = subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
                running.append((process, log, file.tell()))
        while running:
            for part in list(running):
                if (code := part[0].poll()) is None:
                    continue
                running.remove(part)
                if code:
                    return part[1:]
            time.sleep(POLL_SECONDS if running else 0)
            if time.monotonic() - shown > SHOW_SECONDS:
                shown = time.monotonic()
                print(f" {shown - start:.0f} s ...", end="", flush=True)
        return None
    except BaseException:
        print(flush=True)
        raise
    finally:
        for process, *_ in running:
            process.terminate()
            process.wait()


def cause(log: Path, begin: int) -> str:
    """The cause of a failure, from the log after byte `begin`."""
    with log.open("rb") as file:
        file.seek(begin)
        text = file.read().decode(errors="replace")
    for signs, meaning in CAUSES.items():
        if re.search(signs, text, re.IGNORECASE | re.DOTALL):
            return f"{meaning} (the whole log: {log})"
    last = (text.strip().splitlines() or ["it printed nothing"])[-1]
    return f"{last.strip()} (the whole log: {log})"


def main() -> None:
    if sys.argv[1:] == ["--ready"]:
        sys.exit(not is_ready())
    try:
        ensure()
    except KeyboardInterrupt:
        print("\nerror: interrupted; the same command starts the set-up again", file=sys.stderr)
        sys.exit(130)
    except SetupError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: the set-up failed: {error.strerror}: {error.filename or VENV}")


if __name__ == "__main__":
    main()
