"""The build's findings on a machine: nvcc, its CUDA and torch's, and the GPUs to build for."""

from unittest.mock import Mock

import pytest

import build_kernels
import build_machine as machine
from build_machine import Skipped


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """Puts programs that print a text on an otherwise empty PATH; returns the function that makes them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)

    def program(text, name="nvcc"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho '{text}'\n")
        path.chmod(0o755)
        return str(path)

    return program


def listing(*numbers):
    return "\n".join(f"compute_{x}" for x in numbers)


ALL = listing(75, 80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize(
    ("known", "binaries"),
    [(ALL, ["75", "80", "90a", "100", "120"]), (listing(70, 75, 80, 86, 90), ["75", "80", "90a"])],
)
def test_without_a_gpu_all_that_nvcc_knows(nvcc, known, binaries):
    assert machine.architectures(nvcc(known)) == (binaries, ["80"])


@pytest.mark.parametrize(
    ("gpus", "binaries"),
    [("9.0", ["90a"]), ("8.6\n8.9\n8.6", ["86", "89"]), ("12.1", []), ("7.0\n8.0", ["80"])],
)
def test_the_local_gpus(nvcc, gpus, binaries):
    """A GPU unknown to nvcc runs the PTX; a GPU on which the kernels cannot run is left out."""
    nvcc(gpus, "nvidia-smi")
    assert machine.architectures(nvcc(ALL)) == (binaries, ["80"])


def test_common_is_for_gpus_elsewhere(nvcc, monkeypatch):
    nvcc("8.6", "nvidia-smi")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Common")
    assert machine.architectures(nvcc(ALL)) == (["75", "80", "90a", "100", "120"], ["80"])


def test_a_gpu_that_is_too_old_is_the_reason(nvcc):
    nvcc("7.0", "nvidia-smi")
    with pytest.raises(Skipped, match="the GPU's compute capability 7.0 is older than 7.5"):
        machine.architectures(nvcc(ALL))


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("8.0;9.0a+PTX", (["80", "90a"], ["90a"])),
        ("7.0 7.5 8.6+PTX ", (["75", "86"], ["86"])),
        ("10.0,12.0", (["100", "120"], [])),
        ("Volta;Ampere 9.0", (["80", "86", "90"], ["86"])),
    ],
)
def test_the_list_of_torch(nvcc, monkeypatch, wish, expected):
    nvcc("9.0", "nvidia-smi")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wish)
    assert machine.architectures(nvcc(ALL)) == expected


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("Amper", "TORCH_CUDA_ARCH_LIST has 'Amper'; expected numbers such as"),
        ("8.0;12.1", "TORCH_CUDA_ARCH_LIST has 12.1, which nvcc does not know"),
        ("6.0;7.0", "TORCH_CUDA_ARCH_LIST is '6.0;7.0'; the kernels need 7.5 or later"),
    ],
)
def test_a_list_that_cannot_be_built_is_the_reason(nvcc, monkeypatch, wish, message):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wish)
    with pytest.raises(Skipped, match=message):
        machine.architectures(nvcc(ALL))


def torch_of(folder, cuda):
    (folder / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n")
    return folder


@pytest.mark.parametrize(("release", "cuda"), [("13.0", "13.0"), ("12.4", "13.0"), ("12.9", "12.6")])
def test_nvcc_of_torchs_cuda_or_an_earlier_one(nvcc, tmp_path, release, cuda):
    compiler = nvcc(f"Cuda compilation tools, release {release}, V{release}.88")
    machine.check_cuda_of_torch(compiler, torch_of(tmp_path, cuda))


@pytest.mark.parametrize(
    ("cuda", "message"),
    [("12.6", "is of CUDA 13.0, torch of CUDA 12.6, whose driver"), (None, "has no CUDA")],
)
def test_a_torch_that_does_not_fit_is_the_reason(nvcc, tmp_path, cuda, message):
    compiler = nvcc("Cuda compilation tools, release 13.0, V13.0.88")
    with pytest.raises(Skipped, match=message):
        machine.check_cuda_of_torch(compiler, torch_of(tmp_path, cuda))


def test_nvcc_of_the_python_package(nvcc, tmp_path, monkeypatch):
    monkeypatch.setattr(machine.shutil, "which", lambda *_, **__: None)
    with monkeypatch.context() as without:
        without.setattr(machine, "distribution", Mock(side_effect=machine.PackageNotFoundError))
        with pytest.raises(Skipped, match="no nvcc; install a CUDA toolkit or the package nvidia-cuda-nvcc"):
            machine.nvcc()
    installed = tmp_path / "nvidia_cuda_nvcc-13.0.88.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-nvcc\nVersion: 13.0.88\n")
    (installed / "RECORD").write_text("nvidia/cu13/bin/nvcc.profile,,\nnvidia/cu13/bin/nvcc,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    toolkit = tmp_path / "nvidia" / "cu13"
    (toolkit / "bin").mkdir(parents=True)
    for name in ("nvcc.profile", "nvcc"):
        (toolkit / "bin" / name).touch()
    assert machine.nvcc() == str(toolkit / "bin" / "nvcc")
    assert machine.runtime_folder(machine.nvcc()) == []
    (toolkit / "lib").mkdir()
    (toolkit / "lib" / "libcudart_static.a").touch()
    assert machine.runtime_folder(machine.nvcc()) == [f"-L{toolkit / 'lib'}"]


def test_the_oldest_torch_is_that_of_pyproject(root):
    text = (root / "pyproject.toml").read_text()
    major, minor = machine.OLDEST_TORCH
    assert f'"torch>={major}.{minor}"' in text
    target = build_kernels.TORCH_TARGET.removeprefix("-DTORCH_TARGET_VERSION=")
    assert divmod(int(target, 16) >> 48, 256) == (major, minor)


def test_an_older_torch_is_the_reason(monkeypatch):
    monkeypatch.setattr(machine, "version", lambda name: "2.7.1")
    with pytest.raises(Skipped, match=r"torch 2.7.1 is older than 2\.\d+"):
        machine.torch_folder()


@pytest.mark.parametrize(("here", "tag"), [("x86_64", "linux_aarch64"), ("aarch64", "native")])
def test_a_compiler_for_another_processor(nvcc, monkeypatch, here, tag):
    """It makes C++ kernels and a wheel for that one."""
    nvcc("aarch64-linux-gnu", "g++")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(machine.platform, "machine", lambda: here)
    monkeypatch.setattr(build_kernels.bdist_wheel, "get_tag", lambda self: ("cp311", "cp311", "native"))
    assert machine.target(machine.compiler()) == "aarch64"
    wheel = object.__new__(build_kernels.AnyPythonWheel)
    assert wheel.get_tag() == ("py3", "none", tag)


def test_the_compiler_may_have_a_launcher_and_options(nvcc, tmp_path, monkeypatch):
    (tmp_path / "my tools").mkdir()
    programs = {name: nvcc("", name) for name in ("g++", "clang++", "ccache", "my tools/c++")}
    for given, words in {
        "": [programs["g++"]],
        "clang++": [programs["clang++"]],
        "ccache g++ -m64": [programs["ccache"], "g++", "-m64"],
        programs["my tools/c++"]: [programs["my tools/c++"]],
    }.items():
        monkeypatch.setenv("CXX", given)
        assert machine.compiler() == words
    assert machine.of_nvcc([programs["ccache"], "g++", "-m64"]) == ["-ccbin", "g++", "-Xcompiler", "-m64"]
    assert machine.of_nvcc([programs["g++"]]) == ["-ccbin", programs["g++"]]
    assert not machine.crosses([programs["g++"]])  # it names no processor
    monkeypatch.setenv("CXX", "ccache2 g++")
    with pytest.raises(Skipped, match=r"no C\+\+ compiler \(ccache2 g\+\+\)"):
        machine.compiler()
