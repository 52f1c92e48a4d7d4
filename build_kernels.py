"""Builds the kernels of `causal_linear_attention` that the machine supports when the package is installed.

Two shared objects go next to the package's Python files: `_cpu.so` (C++, every instruction set in one file)
and `_cuda.so`. They use torch's stable interface, so they depend neither on the Python version nor on the
torch version, from the oldest that pyproject.toml allows. pip needs --no-build-isolation, so that torch's
headers are there. Without a compiler or without torch the package still installs; `_build.json` says what
was built with what, and why a part was not.

Environment:
    CAUSAL_LINEAR_ATTENTION_CUDA: auto (default: built where nvcc is found), skip, or force (an error if
        the CUDA kernels cannot be built; also where torch lacks CUDA).
    TORCH_CUDA_ARCH_LIST: as for torch, e.g. "8.0;9.0a+PTX" or "Ampere;Hopper", or Common: every architecture
        that the kernels are compiled for in the tests and nvcc knows, and PTX for other GPUs. Default: the
        local GPUs and PTX; Common without one.
    CXX, CUDA_HOME, MAX_JOBS: the C++ compiler ("g++-12", "ccache g++"), the toolkit's folder, the number of
        parallel compilations. A compiler for another processor, as aarch64-linux-gnu-g++, makes C++ kernels
        and a wheel for it.
"""

import json
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

import build_machine as machine
from build_machine import Skipped

PACKAGE = "causal_linear_attention"
SOURCES = Path(__file__).parent / PACKAGE / "csrc"
TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x{:02x}{:02x}000000000000".format(*machine.OLDEST_TORCH)
CXX_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", TORCH_TARGET]
PER_SET = "instruction_set_"  # begins the names of the files that are compiled for one
ISA_FLAGS = {
    f"{PER_SET}avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    f"{PER_SET}avx512.cpp": [
        *("-mavx2", "-mfma", "-mf16c"),
        *("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"),
    ],
}
BASELINE = f"{PER_SET}baseline.cpp"
NVCC_FLAGS = ["-std=c++20", "-O3", "--threads", "0", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
LIBRARIES = ("torch", "torch_cpu")  # torch's
# The parts by the names that `extension.py` uses.
BACKENDS = {"_cpu": "cpp", "_cuda": "cuda"}


def extensions() -> list[Extension]:
    """The two shared objects; the build finds out which of them are possible."""
    sources = {
        "_cpu": sorted((SOURCES / "cpu").glob("*.cpp")),
        "_cuda": sorted(path for kind in ("*.cpp", "*.cu") for path in (SOURCES / "cuda").glob(kind)),
    }
    root = Path(__file__).parent
    return [
        Extension(f"{PACKAGE}.{name}", [str(path.relative_to(root)) for path in paths])
        for name, paths in sources.items()
        if paths
    ]


class AnyPythonWheel(bdist_wheel):
    """A wheel for this platform and every Python 3: the kernels do not use Python."""

    def get_tag(self):
        try:
            compiler = machine.compiler()
        except Skipped:
            compiler = []
        crosses = compiler and machine.crosses(compiler)
        return "py3", "none", f"linux_{machine.target(compiler)}" if crosses else super().get_tag()[2]


class BuildKernels(build_ext):
    """Compiles and links by calling the compilers, and reports in one line what was built."""

    def run(self):
        self.built: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        fingerprint = runpy.run_path(str(SOURCES.parent / "sources.py"))["fingerprint"]
        self.facts: dict[str, object] = {"sources": fingerprint(SOURCES)}
        super().run()
        print(f"{PACKAGE}: {self._report()}", flush=True)

    def build_extensions(self):
        super().build_extensions()
        path = Path(self.build_lib, PACKAGE, "_build.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        skipped = {BACKENDS[name]: why for name, why in self.skipped.items()}
        path.write_text(json.dumps({**self.facts, "skipped": skipped}, indent=2) + "\n", encoding="utf-8")

    def build_extension(self, ext):
        name = ext.name.rpartition(".")[2]
        try:
            if sys.platform == "win32":
                raise Skipped("Windows is not supported")
            build = {"_cpu": self._build_cpu, "_cuda": self._build_cuda}[name]
            self.built[name] = build(ext, Path(self.get_ext_fullpath(ext.name)))
        except Skipped as why:
            # An earlier build may have left the kernels of other sources there.
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            self.skipped[name] = str(why)
            if name == "_cuda" and _cuda_wish() == "force":
                sys.exit(f"{PACKAGE}: CAUSAL_LINEAR_ATTENTION_CUDA=force, but {why}")

    def get_ext_filename(self, fullname):
        """Without the interpreter's tag: torch loads these files, not Python."""
        return fullname.replace(".", os.sep) + ".so"

    def get_outputs(self):
        return [path for path in super().get_outputs() if Path(path).is_file()]

    def copy_extensions_to_source(self):
        for ext in self.extensions:
            built = Path(self.build_lib) / self.get_ext_filename(ext.name)
            target = Path(__file__).parent / self.get_ext_filename(ext.name)
            target.unlink(missing_ok=True)  # it may come from an older source
            if built.is_file():
                shutil.copy2(built, target)
        info = Path(PACKAGE, "_build.json")
        shutil.copy2(self.build_lib / info, Path(__file__).parent / info)

    # --- the two parts -------------------------------------------------------------------------------

    def _build_cpu(self, ext: Extension, target: Path) -> str:
        compiler, torch = machine.compiler(), machine.torch_folder()
        x86 = machine.target(compiler) in ("x86_64", "amd64")
        sources = [x for x in ext.sources if x86 or Path(x).name not in ISA_FLAGS]
        commands = []
        for source in sources:
            name = Path(source).name
            flags = [*CXX_FLAGS, *ISA_FLAGS.get(name, [])]
            if x86 and name == BASELINE:  # only processors older than AVX2 use it
                flags.append("-O1")  # compiles in half the time
            includes = _includes(torch) if name.endswith("bindings.cpp") else []
            commands.append([*compiler, *flags, *includes, "-c", source, "-o", self._object(source)])
        libraries = self._stubs(compiler) if machine.crosses(compiler) else torch / "lib"
        self._link(compiler, commands, target, libraries)
        self.facts.update(
            cpu_compiler=machine.first_line([*compiler, "--version"]), torch=machine.torch_version()
        )
        sets = [Path(x).stem.removeprefix(PER_SET) for x in sources if PER_SET in x]
        return f"C++ kernels ({', '.join(sorted(sets, reverse=True))})"

    def _build_cuda(self, ext: Extension, target: Path) -> str:
        if _cuda_wish() == "skip":
            raise Skipped("CAUSAL_LINEAR_ATTENTION_CUDA=skip")
        nvcc, compiler, torch = machine.nvcc(), machine.compiler(), machine.torch_folder()
        if machine.crosses(compiler):
            raise Skipped(f"{compiler[0]} makes code for {machine.target(compiler)}")
        if _cuda_wish() == "auto":
            machine.check_cuda_of_torch(nvcc, torch)
        binaries, ptx = machine.architectures(nvcc)
        gencode = [f"-gencode=arch=compute_{x},code=sm_{x}" for x in binaries]
        gencode += [f"-gencode=arch=compute_{x},code=compute_{x}" for x in ptx]
        archs = [f"sm_{x}" for x in binaries] + [f"PTX {x}" for x in ptx]
        commands = []
        for source in ext.sources:
            flags = gencode if source.endswith(".cu") else [TORCH_TARGET, "-DUSE_CUDA", *_includes(torch)]
            compile_ = [nvcc, *machine.of_nvcc(compiler), *NVCC_FLAGS, *flags, "-c", source]
            commands.append([*compile_, "-o", self._object(source)])
        self._link(
            [nvcc], commands, target, torch / "lib", ["-cudart", "static", *machine.runtime_folder(nvcc)]
        )
        release = machine.first_line([nvcc, "--version"], "release")
        self.facts.update(nvcc=release, cuda_archs=archs, torch=machine.torch_version())
        return f"CUDA kernels ({', '.join(archs)})"

    def _stubs(self, compiler: list[str]) -> Path:
        """A folder with empty libraries called as torch's, which is not there for the compiler's processor.

        The kernels find their symbols when they are loaded.
        """
        folder = Path(self.build_temp, "stubs").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in LIBRARIES:
            path = folder / f"lib{name}.so"
            named = ["-shared", f"-Wl,-soname,{path.name}", "-x", "c++", os.devnull, "-o", str(path)]
            _run_all([[*compiler, *named]])
        return folder

    def _object(self, source: str) -> str:
        path = Path(self.build_temp) / Path(source).with_suffix(".o")
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def _link(
        self, linker: list[str], commands: list[list[str]], target: Path, folder: Path, flags=()
    ) -> None:
        # Those of an instruction set take the longest. They are linked in the order of their names, so that a
        # function that several files have is not the one of a newer processor.
        _run_all(sorted(commands, key=lambda command: PER_SET not in command[-1]))
        target.parent.mkdir(parents=True, exist_ok=True)
        objects = [command[-1] for command in commands]
        libraries = [f"-L{folder}", *(f"-l{name}" for name in LIBRARIES)]
        # The linker must drop nothing: the operators register when loaded, and no symbol refers to them.
        keep = ["-Xlinker", "--no-as-needed"] if sys.platform == "linux" else []
        _run_all([[*linker, "-shared", *objects, *keep, *libraries, *flags, "-o", str(target)]])

    def _report(self) -> str:
        built = " and ".join(self.built.values()) or "no kernels (PyTorch runs instead)"
        titles = {"_cpu": "C++", "_cuda": "CUDA"}
        skipped = "; ".join(f"{titles[name]}: {why}" for name, why in self.skipped.items())
        return f"built {built}" + (f"; skipped {skipped}" if skipped else "")


def _cuda_wish() -> str:
    wish = os.environ.get("CAUSAL_LINEAR_ATTENTION_CUDA", "auto")
    if wish not in ("auto", "skip", "force"):
        sys.exit(f"{PACKAGE}: CAUSAL_LINEAR_ATTENTION_CUDA is {wish!r}; expected auto, skip or force")
    return wish


def _includes(torch: Path) -> list[str]:
    include = torch / "include"
    return ["-isystem", str(include), "-isystem", str(include / "torch/csrc/api/include")]


def _jobs() -> int:
    """As many as processors and memory allow (about 1.5 GB each)."""
    if jobs := os.environ.get("MAX_JOBS"):
        if not jobs.isdecimal():
            sys.exit(f"{PACKAGE}: MAX_JOBS is {jobs!r}; expected a number")
        return max(1, int(jobs))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(processors, memory // 1_500_000_000))


def _run_all(commands: list[list[str]]) -> None:
    def run(command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout, done.stderr, sep="", file=sys.stderr)
            raise Skipped(f"{Path(command[0]).name} could not make {Path(command[-1]).name}")

    with ThreadPoolExecutor(_jobs()) as pool:
        list(pool.map(run, commands))
