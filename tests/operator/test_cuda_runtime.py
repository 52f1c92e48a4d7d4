"""Launches of the CUDA kernels on a runtime that fails on request (tests/cpp/fake_cuda)."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import pytest

NO_IMAGE = 209
DEVICE_MAXIMUM = 99_000


@pytest.fixture(scope="module")
def library(root, on_fake_cuda):
    result = on_fake_cuda(root / "tests" / "cpp" / "fake_launch.cpp")
    result.fake_launch.restype = result.fake_clear.restype = ctypes.c_char_p
    return result


def variable(library, name):
    return ctypes.c_int.in_dll(library, name)


@pytest.fixture
def runtime(library):
    """Reads a count of the fake runtime; `fails` sets its answer to all calls."""

    def count(name):
        return variable(library, f"fake_{name}").value

    def fails(error):
        variable(library, "fake_error").value = error

    count.fails = fails
    yield count
    fails(0)


def test_shared_memory_is_asked_for_once_and_at_its_maximum(library, runtime):
    """Whatever a launch needs, so that one thread's launch never shrinks what another's counts on."""
    before = runtime("opt_ins")
    for shared_bytes in (1000, 50_000, 2000):
        assert library.fake_launch(1, shared_bytes) is None
    assert runtime("opt_ins") == before + 1 and runtime("shared_bytes") == DEVICE_MAXIMUM
    library.fake_launch(2, 1000)
    assert runtime("opt_ins") == before + 2, "another device is asked by itself"


def test_many_threads_launch_at_once(library, runtime):
    launches = runtime("launches")
    with ThreadPoolExecutor(8) as pool:
        errors = list(pool.map(lambda x: library.fake_launch(3, 1000 + x), range(200)))
    assert errors == [None] * 200 and runtime("launches") == launches + 200
    asked = runtime("opt_ins")
    library.fake_launch(3, 1)
    assert runtime("opt_ins") == asked


@pytest.mark.parametrize("known", [False, True], ids=["opting in", "launching"])
def test_a_failure_is_reported_and_leaves_no_error_behind(library, runtime, known):
    device = 4 + known
    if known:
        library.fake_launch(device, 1000)
    launches = runtime("launches")
    runtime.fails(NO_IMAGE)
    assert b"no kernel image" in library.fake_launch(device, 1000)
    assert b"no kernel image" in library.fake_clear()
    assert runtime("pending") == 0
    assert runtime("launches") == launches + known
    runtime.fails(0)
    assert library.fake_clear() is None
    assert library.fake_launch(device, 1000) is None, "a failure is not for good"


def test_the_number_of_blocks_is_asked_for_once(library, runtime):
    runtime.fails(NO_IMAGE)
    assert library.fake_blocks(6, 2, 30_000) == 1 and runtime("pending") == 0
    runtime.fails(0)
    before = runtime("questions")
    assert [library.fake_blocks(6, 2, 30_000) for _ in range(3)] == [3, 3, 3]
    assert library.fake_blocks(6, 1, 50_000) == 2
    assert runtime("questions") == before + 2
