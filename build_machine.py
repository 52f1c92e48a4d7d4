"""Means of a machine to build the kernels: compilers, torch (found without importing it), GPUs."""

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version
from itertools import takewhile
from pathlib import Path

# Without a local GPU, machine code for those of these that nvcc knows.
ARCHITECTURES = ("75", "80", "90a", "100", "120")
NAMED = {  # torch's names in TORCH_CUDA_ARCH_LIST
    **{"Volta": "7.0+PTX", "Turing": "7.5+PTX", "Ampere": "8.0 8.6+PTX", "Ada": "8.9+PTX"},
    **{"Hopper": "9.0+PTX", "Blackwell": "10.0 12.0+PTX"},
}
# PTX, which the driver compiles for GPUs that the machine code does not fit.
PTX = "80"
OLDEST_ARCHITECTURE = 75  # the first with the matrix instructions that the kernels use


class Skipped(Exception):
    """Why a part is not built, in a few words for the report."""


def oldest_torch() -> tuple[int, int]:
    """The version that pyproject.toml asks for."""
    project = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text(encoding="utf-8"))
    (number,) = [
        x.removeprefix("torch>=") for x in project["project"]["dependencies"] if x.startswith("torch>=")
    ]
    major, minor = map(int, number.split("."))
    return major, minor


OLDEST_TORCH = oldest_torch()


def compiler() -> list[str]:
    """The words of CXX ("ccache g++"), else the first of g++, clang++ and c++; raises Skipped without."""
    given = os.environ.get("CXX", "").strip()
    names = [given] if given else ["g++", "clang++", "c++"]
    for name in names:
        first, *others = [name] if shutil.which(name) else name.split()
        if found := shutil.which(first):
            return [found, *others]
    raise Skipped(f"no C++ compiler ({', '.join(names)})")


def target(compiler: list[str]) -> str:
    """The processor that the compiler makes code for, such as x86_64 or aarch64."""
    found = first_line([*compiler, "-dumpmachine"]).partition("-")[0]
    return found or platform.machine().lower()


def crosses(compiler: list[str]) -> bool:
    """Whether the compiler makes code for x86_64 or aarch64, and this machine is another."""
    found = target(compiler)
    return sys.platform == "linux" and found in ("x86_64", "aarch64") and found != platform.machine()


def of_nvcc(compiler: list[str]) -> list[str]:
    """nvcc's options for this compiler; nvcc takes no other program before it."""
    programs = list(takewhile(lambda word: not word.startswith("-"), compiler))
    options = [x for word in compiler[len(programs) :] for x in ("-Xcompiler", word)]
    return ["-ccbin", programs[-1], *options]


def nvcc() -> str:
    """That of CUDA_HOME, else of PATH, the usual folder or the package nvidia-cuda-nvcc."""
    if home := os.environ.get("CUDA_HOME"):
        if found := shutil.which("nvcc", path=str(Path(home, "bin"))):
            return found
        raise Skipped(f"no nvcc in {home}/bin")
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin") or _packaged_nvcc()
    if not found:
        raise Skipped("no nvcc; install a CUDA toolkit or the package nvidia-cuda-nvcc")
    return found


def _packaged_nvcc() -> str | None:
    try:
        files = distribution("nvidia-cuda-nvcc").files or []
    except PackageNotFoundError:
        return None
    return next((str(path.locate()) for path in files if path.name == "nvcc"), None)


def runtime_folder(nvcc: str) -> list[str]:
    """The linker's option for CUDA's runtime, which the package keeps where nvcc does not look."""
    folder = Path(nvcc).parent.parent / "lib"
    return [f"-L{folder}"] if (folder / "libcudart_static.a").is_file() else []


def torch_version() -> str:
    """Of the torch that is installed, "" without one."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def torch_folder() -> Path:
    """Where torch is installed; raises Skipped without one, or if it is too old."""
    spec, number = importlib.util.find_spec("torch"), torch_version()
    if spec is None or not spec.submodule_search_locations or not number:
        raise Skipped("torch is not visible to the build (install torch first, use --no-build-isolation)")
    if tuple(int(x) for x in re.findall(r"\d+", number)[:2]) < OLDEST_TORCH:
        raise Skipped("torch {} is older than {}.{}".format(number, *OLDEST_TORCH))
    return Path(spec.submodule_search_locations[0])


def check_cuda_of_torch(nvcc: str, torch: Path) -> None:
    """Raises Skipped unless torch has CUDA and nvcc's CUDA is not of a later major version.

    The kernels link nvcc's runtime, which needs a driver of its major version or later. torch's CUDA needs
    such a driver, too, so an earlier nvcc always fits.
    """
    text = (torch / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*= *['\"]([\d.]+)", text, flags=re.MULTILINE)
    if not found:
        raise Skipped(f"torch {torch_version()} has no CUDA (force builds them anyway)")
    release = re.search(r"release ([\d.]+)", first_line([nvcc, "--version"], "release"))
    if release and int(release[1].split(".")[0]) > int(found[1].split(".")[0]):
        raise Skipped(
            f"{nvcc} is of CUDA {release[1]}, torch of CUDA {found[1]}, whose driver may be too old for the "
            "kernels (force builds them anyway)"
        )


def architectures(nvcc: str) -> tuple[list[str], list[str]]:
    """What to build machine code for, and PTX: compute capabilities such as "75" and "90a"."""
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=False).stdout
    known = {int(x) for x in re.findall(r"compute_(\d+)\b", listed)}
    if not known:
        raise Skipped(f"{nvcc} does not list the architectures it supports")
    wish = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if wish and wish != "Common":
        return _wished(wish, known)
    local = [] if wish else _local_gpus()
    if local and max(local) < OLDEST_ARCHITECTURE:
        raise Skipped(
            f"the GPU's compute capability {max(local) / 10} is older than {OLDEST_ARCHITECTURE / 10}"
        )
    wanted = ["90a" if x == 90 else str(x) for x in local if x >= OLDEST_ARCHITECTURE] or ARCHITECTURES
    return [x for x in wanted if int(x.rstrip("a")) in known], [PTX] if int(PTX) in known else []


def _wished(wish: str, known: set[int]) -> tuple[list[str], list[str]]:
    """TORCH_CUDA_ARCH_LIST, less the architectures that are too old for the kernels."""
    binaries, ptx = [], []
    words = [NAMED.get(word, word) for word in re.split(r"[\s;,]+", wish.strip(" ;,"))]
    for word in " ".join(words).split():
        found = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", word)
        if not found:
            raise Skipped(
                f"TORCH_CUDA_ARCH_LIST has {word!r}; expected numbers such as 8.0 and 9.0a+PTX, or names "
                "such as Hopper"
            )
        major, minor, feature, forward = found.groups()
        number = int(major + minor)
        if number < OLDEST_ARCHITECTURE:
            continue
        if number not in known:
            raise Skipped(f"TORCH_CUDA_ARCH_LIST has {word}, which nvcc does not know")
        binaries.append(f"{number}{feature}")
        ptx += [f"{number}{feature}"] if forward else []
    if not binaries:
        raise Skipped(
            f"TORCH_CUDA_ARCH_LIST is {wish!r}; the kernels need {OLDEST_ARCHITECTURE / 10} or later"
        )
    return binaries, ptx


def _local_gpus() -> list[int]:
    """Compute capabilities of the machine's GPUs, without torch: 90 for 9.0."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return []
    return sorted(
        {int(major + minor) for major, minor in re.findall(r"^(\d+)\.(\d)\s*$", listed, re.MULTILINE)}
    )


def first_line(command: list[str], containing: str = "") -> str:
    """The first line that the command prints, of those containing some text."""
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line for line in lines if containing in line), "")
