"""The choice of "auto": devices that the CUDA kernels cannot run on, the warning, and how often it comes."""

import ctypes
import dataclasses
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    extension,
    functional,
    operators,
    select_backend,
    selection,
)

NO_IMAGE = 209
GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def runtime(root, on_fake_cuda):
    return on_fake_cuda(root / "causal_linear_attention" / "csrc" / "cuda" / "available.cu")


@pytest.fixture
def gpu(runtime, monkeypatch):
    """The CUDA kernels loaded on a machine with one fake GPU; returns a function that sets its answer."""
    monkeypatch.setitem(extension._libraries, "cuda", runtime)
    monkeypatch.setattr(extension, "_reasons", {})
    monkeypatch.setattr(extension, "_reasons_on_gpus", {})
    monkeypatch.setattr(extension, "build_info", lambda: {"cuda_archs": ["sm_90a"]})
    monkeypatch.setattr(selection, "_announced", set())
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        device=lambda index: nullcontext(),
        get_device_capability=lambda index: (7, 0),
        get_device_name=lambda index: "Old GPU",
        is_current_stream_capturing=lambda: False,
    )
    monkeypatch.setattr(extension, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(selection._AUTO, "cuda", ("cuda",))

    def answer(error):
        ctypes.c_int.in_dll(runtime, "fake_error").value = error
        ctypes.c_int.in_dll(runtime, "fake_questions").value = 0

    return answer


def questions(runtime):
    return ctypes.c_int.in_dll(runtime, "fake_questions").value


def test_a_device_with_an_image_is_asked_once(gpu, runtime):
    gpu(0)
    assert {select_backend("auto", GPU) for _ in range(3)} == {"cuda"}
    assert select_backend("auto", "cuda") == select_backend("cuda", GPU) == "cuda"
    assert questions(runtime) == 1


def test_a_device_without_an_image_falls_back(gpu, runtime):
    gpu(NO_IMAGE)
    assert {select_backend("auto", GPU) for _ in range(3)} == {"torch"}
    with pytest.raises(ValueError, match="backend is 'cuda', but the CUDA kernels, built for sm_90a, cannot"):
        select_backend("cuda", GPU)
    assert questions(runtime) == 1


def test_a_refusal_while_a_graph_is_captured_is_not_remembered(gpu, runtime, monkeypatch):
    gpu(NO_IMAGE)
    monkeypatch.setattr(extension.torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "no kernel image" in extension.reason_on_gpu(GPU)
    gpu(0)
    assert extension.reason_on_gpu(GPU) == extension.reason_on_gpu(GPU) == "" and questions(runtime) == 1


def test_the_error_of_the_question_is_not_left_for_the_next_launch(gpu, runtime):
    gpu(NO_IMAGE)
    assert "no kernel image" in extension.reason_on_gpu(GPU)
    assert ctypes.c_int.in_dll(runtime, "fake_pending").value == 0


def test_two_threads_ask_one_question(gpu, runtime, monkeypatch):
    gpu(NO_IMAGE)
    ask, inside = extension._ask_gpu, threading.Barrier(2)

    def slow(index):
        inside.wait(10)  # for the test's own thread, not for another that asks too
        return ask(index)

    monkeypatch.setattr(extension, "_ask_gpu", slow)
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(select_backend, "auto", GPU) for _ in range(4)]
        inside.wait(10)
    assert [answer.result() for answer in answers] == ["torch"] * 4 and questions(runtime) == 1


def test_the_operator_runs_and_warns_once(gpu, monkeypatch, caplog):
    """On a CPU that plays the GPU, from several threads."""
    gpu(NO_IMAGE)
    reason = extension.reason_on_gpu(GPU)
    cuda = dataclasses.replace(selection.KERNELS["cuda"], home="cpu", reason=lambda _: reason)
    monkeypatch.setitem(selection.KERNELS, "cuda", cuda)
    monkeypatch.setitem(selection._AUTO, "cpu", ("cuda",))
    x = torch.rand(1, 1, 70, 4)
    expected = causal_linear_attention(x, x, x, backend="reference")
    with caplog.at_level(logging.INFO, "causal_linear_attention"), ThreadPoolExecutor(3) as pool:
        outs = [pool.submit(causal_linear_attention, x, x, x) for _ in range(3)]
    for out in outs:
        torch.testing.assert_close(out.result(), expected)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "causal linear attention runs on backend torch on cpu (the CUDA kernels, built for sm_90a, cannot "
        "run on Old GPU of compute capability 7.0 (no kernel image is available for execution on the device))"
    )


def test_the_question_does_not_break_a_compiled_graph(gpu, runtime, monkeypatch):
    gpu(NO_IMAGE)
    cuda = dataclasses.replace(selection.KERNELS["cuda"], home="cpu")
    monkeypatch.setitem(selection.KERNELS, "cuda", cuda)
    monkeypatch.setitem(selection._AUTO, "cpu", ("cuda",))
    x = torch.rand(1, 1, 70, 4)
    torch._dynamo.reset()  # what other tests compiled counts against the limit of variants
    compiled = torch.compile(causal_linear_attention, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, x, x), causal_linear_attention(x, x, x, backend="reference"))
    assert questions(runtime) == 1


def test_float64_and_wide_heads_run_on_pytorch_without_a_warning(gpu, caplog):
    gpu(0)
    assert select_backend("auto", GPU, torch.float64) == "torch"
    for dtype, most in ((torch.float32, 128), (torch.bfloat16, 256), (torch.float16, 256)):
        assert select_backend("auto", GPU, dtype, most) == "cuda"
        assert select_backend("auto", GPU, dtype, most + 1) == "torch"
        with pytest.raises(ValueError, match=f"expected D and M of at most {most}, not {most + 1}"):
            select_backend("cuda", GPU, dtype, most + 1)
    with caplog.at_level(logging.INFO, "causal_linear_attention"):
        selection.announce("torch", GPU)
    assert caplog.records[0].levelno == logging.INFO


def test_no_gpu_is_a_reason(gpu, monkeypatch):
    monkeypatch.setattr(extension.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="backend is 'cuda', but torch finds no GPU"):
        select_backend("cuda", "cuda")


def test_kernels_after_the_selected_ones_are_not_asked(gpu, monkeypatch, caplog):
    gpu(0)

    def asked(device):
        raise AssertionError("Triton would compile a kernel to answer")

    monkeypatch.setattr(selection, "KERNELS", dict(selection.KERNELS))
    monkeypatch.setitem(selection._AUTO, "cuda", ("cuda", "triton"))
    selection.KERNELS["triton"] = dataclasses.replace(selection.KERNELS["triton"], reason=asked)
    assert select_backend("auto", GPU) == "cuda"
    with caplog.at_level(logging.INFO, "causal_linear_attention"):
        selection.announce("cuda", GPU)
    assert caplog.messages == ["causal linear attention runs on backend cuda on cuda:0"]


@pytest.mark.parametrize("selected", ["cuda", "triton", "torch"])
def test_a_decoding_step_on_a_gpu_is_one_operator_where_the_kernels_run(monkeypatch, selected):
    calls = []
    monkeypatch.setattr(functional, "select_backend", lambda *_: selected)
    for name, kernels in selection.KERNELS.items():
        counted = dataclasses.replace(kernels, step=lambda *_, name=name: calls.append(name))
        monkeypatch.setitem(selection.KERNELS, name, counted)
    with FakeTensorMode(), torch.no_grad():
        q, v, state = (torch.empty(2, 3, *x, device="cuda") for x in [(4,), (5,), (4, 5)])
        causal_linear_attention_step(q, q, v, state)
    assert calls == ([] if selected == "torch" else [selected])


def test_the_step_on_triton_refuses_what_would_read_beyond_a_tensor():
    q, v, state = (torch.empty(2, 3, *x) for x in [(4,), (5,), (4, 4)])
    with pytest.raises(ValueError, match=r"^state has shape \(2, 3, 4, 4\); expected \(2, 3, 4, 5\)$"):
        operators.triton_step(q, q, v, state, False, 1e-6)
