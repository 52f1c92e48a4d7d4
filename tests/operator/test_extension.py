"""Loading, falling back, `info`, and builds on machines that lack something."""

import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from types import SimpleNamespace

import pytest
import torch
from setuptools import Distribution

import build_kernels
from causal_linear_attention import (
    causal_linear_attention,
    extension,
    info,
    select_backend,
    selection,
    sources,
)

cpp = pytest.mark.skipif(not extension.loaded("cpp"), reason=extension.reason("cpp") or "loaded")


FORKS = """
import os, sys, torch
for case in sys.argv[2:]:
    if not os.fork():
        exec(sys.argv[1], {"case": case})
        sys.stdout.flush()
        os._exit(0)
    if os.wait()[1]:
        sys.exit("a fork failed")
"""


def in_forks(code, cases, cwd):
    """The line that `code` prints for each `case`; in forks, for torch is slow to import."""
    command = [sys.executable, "-c", FORKS, code, *map(str, cases)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": ""}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def copy_package(root, target):
    """The sources of the package, without its builds."""
    built = shutil.ignore_patterns("*.so", "_build.json", "__pycache__")
    shutil.copytree(root / "causal_linear_attention", target, ignore=built)


def test_auto_is_the_kernels_of_the_device():
    expected = "cpp" if extension.loaded("cpp") else "torch"
    assert select_backend("auto") == expected
    assert select_backend("auto", "cpu", torch.float8_e5m2) == "torch"
    assert select_backend("auto", "meta") == "torch"
    for name in ("torch", "reference"):
        assert select_backend(name, "cuda") == name


def test_a_backend_that_is_not_there_is_an_error(monkeypatch):
    monkeypatch.setitem(extension._reasons, "cpp", "the C++ kernels were not built")
    x = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match=r"backend is 'cpp', but the C\+\+ kernels were not built"):
        causal_linear_attention(x, x, x, backend="cpp")
    assert select_backend("auto") == "torch"


@cpp
def test_kernels_refuse_the_wrong_device():
    x = torch.zeros(1, 1, 2, 2, device="meta")
    with pytest.raises(ValueError, match="backend is 'cpp'; expected inputs on cpu, not meta"):
        causal_linear_attention(x, x, x, backend="cpp")


def test_a_library_that_does_not_load_is_one_sentence(monkeypatch, tmp_path):
    broken = tmp_path / "_cpu.so"
    broken.write_bytes(b"not a shared object")
    monkeypatch.setitem(extension.FILES, "cpp", broken)
    monkeypatch.setattr(extension, "_reasons", {})
    monkeypatch.setattr(extension, "build_info", lambda: {"torch": "2.10.1"})
    extension.load("cpp")
    sentence = extension.reason("cpp")
    assert "built for torch 2.10.1" in sentence and f"under torch {torch.__version__}" in sentence
    assert "\n" not in sentence


@cpp
def test_kernels_of_older_sources_do_not_run(monkeypatch):
    """As after `git pull`: their operators may have other arguments."""
    assert extension.build_info()["sources"] == sources.fingerprint(extension.FOLDER / "csrc")
    monkeypatch.setattr(extension, "_reasons", {})
    monkeypatch.setattr(extension, "from_these_sources", extension.from_these_sources.__wrapped__)
    monkeypatch.setattr(extension, "build_info", lambda: {"sources": "of another day"})
    extension.load("cpp")
    assert "built from other sources" in extension.reason("cpp")
    assert "reinstall the package" in extension.reason("cpp")
    assert select_backend("auto") == "torch"


FORCED = """
import os
os.environ["CAUSAL_LINEAR_ATTENTION_ISA"] = case
from causal_linear_attention import extension, select_backend
print(select_backend("auto"), extension.reason("cpp") or extension.instruction_set())
"""


@cpp
def test_the_environment_forces_an_instruction_set(root):
    """One that is unknown is a sentence, and PyTorch runs."""
    names = extension.available_instruction_sets()
    *found, unknown = in_forks(FORCED, [*names, "mmx"], root)
    assert found == [f"cpp {name}" for name in names]
    assert unknown.startswith("torch CAUSAL_LINEAR_ATTENTION_ISA cannot be used")
    assert "expected one of baseline" in unknown


def test_info_passes_its_self_test(capsys):
    assert info.main(["--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["default"]["cpu"] == select_backend("auto")
    tested = {(x["backend"], x["dtype"]) for x in facts["self-test"]}
    assert ("torch", "bfloat16") in tested and all(x["passed"] for x in facts["self-test"])
    assert info.main([]) == 0
    assert "self-test" in capsys.readouterr().out


def build(root, tmp_path, **environment):
    """Runs the build on a copy of the tree's build files, into a separate folder."""
    for name in ("setup.py", "build_kernels.py", "build_machine.py", "pyproject.toml"):
        shutil.copy(root / name, tmp_path)
    copy_package(root, tmp_path / "causal_linear_attention")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
        check=False,
    )
    return done, list((tmp_path / "out").rglob("*.so"))


NO_COMPILER = {"CXX": "no-such-compiler", "CAUSAL_LINEAR_ATTENTION_CUDA": "skip"}


@pytest.fixture(scope="module")
def without_a_compiler(root, tmp_path_factory):
    """The folder, the end and the libraries of a build on a machine that has no compiler."""
    folder = tmp_path_factory.mktemp("no compiler")
    return folder, *build(root, folder, **NO_COMPILER)


def test_installs_without_a_compiler(without_a_compiler):
    folder, done, libraries = without_a_compiler
    assert done.returncode == 0 and not libraries
    assert "built no kernels (PyTorch runs instead)" in done.stdout
    assert "C++: no C++ compiler (no-such-compiler)" in done.stdout
    assert list((folder / "out").rglob("functional.py"))
    (record,) = (folder / "out").rglob("_build.json")
    assert json.loads(record.read_text())["skipped"] == {
        "cpp": "no C++ compiler (no-such-compiler)",
        "cuda": "CAUSAL_LINEAR_ATTENTION_CUDA=skip",
    }


@pytest.mark.parametrize(
    ("platform", "compiler", "why"),
    [
        ("win32", "g++", "Windows is not supported"),
        ("darwin", "false", "false could not make instruction_set_"),
    ],
)
def test_where_the_kernels_do_not_compile_pytorch_runs(root, tmp_path, monkeypatch, platform, compiler, why):
    monkeypatch.setattr(build_kernels, "sys", SimpleNamespace(platform=platform, stderr=sys.stderr))
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.chdir(root)
    extensions = build_kernels.extensions()[: 2 if platform == "win32" else 1]
    command = build_kernels.BuildKernels(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(tmp_path / "lib"), str(tmp_path / "objects")
    command.ensure_finalized()
    command.built, command.skipped, command.facts = {}, {}, {}
    for each in extensions:
        command.build_extension(each)
    assert [x.startswith(why) for x in command.skipped.values()] == [True] * len(extensions)
    assert command._report().startswith(f"built no kernels (PyTorch runs instead); skipped C++: {why}")


def test_why_the_build_skipped_kernels_is_shown(monkeypatch, tmp_path, caplog):
    """In `info`, and as one warning at the first use on the device."""
    monkeypatch.setitem(extension.FILES, "cuda", tmp_path / "_cuda.so")
    monkeypatch.setattr(extension, "build_info", lambda: {"skipped": {"cuda": "no nvcc"}})
    monkeypatch.setattr(extension, "_reasons", dict(extension._reasons))
    monkeypatch.setattr(selection, "_announced", set())
    extension.load("cuda")
    assert info.describe()["CUDA kernels"] == "the CUDA kernels were not built (no nvcc)"
    for _ in range(2):
        selection.announce("torch", torch.device("cuda", 0))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("causal linear attention runs on backend torch on cuda:0 (")
    assert "the CUDA kernels were not built (no nvcc)" in record.getMessage()


def test_wheel_and_sdist_contain_the_sources(root, without_a_compiler):
    folder = without_a_compiler[0]
    shutil.copy(root / "MANIFEST.in", folder)
    shutil.copy(root / "requirements.txt", folder)
    subprocess.run(
        [sys.executable, "setup.py", "-q", "sdist", "bdist_wheel"],
        cwd=folder,
        env={**os.environ, **NO_COMPILER},
        capture_output=True,
        check=True,
    )
    sources = root / "causal_linear_attention"
    wanted = {
        str(path.relative_to(root))
        for path in sources.rglob("*")
        if path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh", ".inl")
    }
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*wanted, "build_kernels.py", "build_machine.py", "setup.py", "pyproject.toml"} <= names


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("force", "CAUSAL_LINEAR_ATTENTION_CUDA=force, but no nvcc"),
        ("always", "is 'always'; expected auto, skip or force"),
    ],
)
def test_a_wish_that_cannot_be_is_an_error(wish, message, root, tmp_path):
    environment = {"CXX": "no-such-compiler", "CUDA_HOME": str(tmp_path)}
    done, _ = build(root, tmp_path, CAUSAL_LINEAR_ATTENTION_CUDA=wish, **environment)
    assert done.returncode != 0
    assert message in done.stderr and "Traceback" not in done.stderr


ASKED = """
import os
os.chdir(case)
from causal_linear_attention import extension
print(extension.FOLDER, extension.reason("cpp") or "loaded")
"""


@cpp
def test_kernels_built_elsewhere_run_in_another_folder(root, tmp_path):
    """The three files of a build, copied into a checkout of the same sources; not of others."""
    expected = {
        "without": "the C++ kernels were not built",
        "same": "loaded",
        "changed": "built from other sources",
    }
    for name in expected:
        package = tmp_path / name / "causal_linear_attention"
        copy_package(root, package)
        for path in (root / "causal_linear_attention").glob("_*"):
            if name != "without" and (path.suffix == ".so" or path.name == "_build.json"):
                shutil.copy(path, package)
    with (package / "csrc" / "problem.h").open("a") as source:  # of the last
        source.write("// changed\n")
    answers = in_forks(ASKED, [tmp_path / name for name in expected], tmp_path)
    for answer, (name, said) in zip(answers, expected.items(), strict=True):
        folder, _, reason = answer.partition(" ")
        assert folder == str(tmp_path / name / "causal_linear_attention") and said in reason
