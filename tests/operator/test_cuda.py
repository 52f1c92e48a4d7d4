"""The CUDA kernels inside PyTorch: streams, graphs, determinism, operators. Their values against the
definition are in test_kernels.py."""

import pytest
import torch

from causal_linear_attention import (
    causal_linear_attention,
    causal_linear_attention_step,
    extension,
    operators,
    select_backend,
    triton_backend,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(not extension.loaded("cuda"), reason=extension.reason("cuda") or "loaded"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(shape, dtype=torch.float32, normalize=False):
    batch, heads, length, dim, width = shape
    # Of both signs, since sums of thousands of positive products are beyond float16.
    low = 0.1 if normalize else -0.5
    q, k, v = (torch.rand(batch, heads, length, x, device="cuda").to(dtype) + low for x in (dim, dim, width))
    state = torch.rand(batch, heads, dim, width + normalize, device="cuda")
    return [x.requires_grad_() for x in (q, k, v, state)]


def everything(q, k, v, state, normalize):
    out, final = causal_linear_attention(
        q, k, v, initial_state=state, normalize=normalize, return_state=True, backend="cuda"
    )
    loss = out.float().square().sum() + final.sum()
    return [out.detach(), final.detach(), *torch.autograd.grad(loss, (q, k, v, state))]


def test_auto_is_the_kernels():
    triton = not triton_backend.reason(torch.device("cuda"))
    assert select_backend("auto", "cuda", torch.bfloat16) == "cuda"
    assert select_backend("auto", "cuda", torch.float64) == ("triton" if triton else "torch")


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 300, 64, 64), (1, 1, 5000, 32, 48), (1, 2, 1500, 256, 256)])
def test_the_same_inputs_give_the_same_bits(shape, dtype, normalize):
    if shape[-1] == 256 and dtype == torch.float32:
        pytest.skip("float32 has no such kernels")
    given = draw(shape, dtype, normalize)
    for x, y in zip(everything(*given, normalize), everything(*given, normalize), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("shape", [(2, 3, 300, 64, 64), (1, 1, 5000, 32, 48)])
def test_work_goes_to_the_current_stream(shape):
    """Earlier work of the stream must be visible, later work must wait."""
    given = draw(shape)
    expected = causal_linear_attention(*given[:3], backend="cuda")
    stream, late = torch.cuda.Stream(), torch.zeros_like(given[0])
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        busy = torch.rand(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy
        late.copy_(given[0])
        out = causal_linear_attention(late, *given[1:3], backend="cuda")
        late.zero_()
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("shape", [(2, 3, 300, 64, 64), (1, 1, 5000, 32, 48)])
def test_a_cuda_graph_replays_forward_and_backward(shape, normalize):
    given, other = draw(shape, normalize=normalize), draw(shape, normalize=normalize)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        everything(*given, normalize)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = everything(*given, normalize)
    with torch.no_grad():
        for x, y in zip(given, other, strict=True):
            x.copy_(y)
    graph.replay()
    for x, y in zip(found, everything(*other, normalize), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(dtype, normalize):
    q, k, v, state = (x.detach() for x in draw((1, 2, 1100, 16, 24), dtype, normalize))
    arguments = (q, k, v, state, normalize, 1e-6, True)
    assert set(torch.library.opcheck(operators.forward, arguments).values()) == {"SUCCESS"}
    out, final, inverse, kept = operators.forward(*arguments)
    arguments = (out, final, q, k, v, state, inverse, kept, normalize, 1e-6)
    assert set(torch.library.opcheck(operators.backward, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dim", [48, 200])
def test_packed_sequences_equal_the_loop(dim, normalize):
    cu_seqlens = torch.tensor([0, 3, 3, 1200, 1201], dtype=torch.int32, device="cuda")
    q, k, v, _ = draw((1, 2, 1201, dim, dim), torch.bfloat16, normalize)
    state = torch.rand(4, 2, dim, dim + normalize, device="cuda", requires_grad=True)

    def run(backend):
        options = {"cu_seqlens": cu_seqlens, "normalize": normalize, "backend": backend}
        out, final = causal_linear_attention(q, k, v, initial_state=state, return_state=True, **options)
        loss = out.float().square().sum() + final.sum()
        return [out.detach(), final.detach(), *torch.autograd.grad(loss, (q, k, v, state))]

    for x, y in zip(run("cuda"), run("torch"), strict=True):
        assert (x.double() - y.double()).norm() <= 2e-2 * y.double().norm()


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 300, 64, 64), (1, 1, 5000, 32, 48), (1, 2, 700, 128, 100)])
def test_decays(shape, dtype, normalize):
    """Equal to PyTorch in float64; equal inputs give equal bits, and a step gives the last output."""
    given = [x.detach() for x in draw(shape, dtype, normalize)]
    decay = -torch.rand(shape[:3], device="cuda") / 4
    decay[..., 200], decay[..., 230] = -torch.inf, -60.0

    def run(backend, *given):
        leaves = [x.clone().requires_grad_() for x in given]
        q, k, v, state, decay = leaves
        out, final = causal_linear_attention(
            *(q, k, v),
            initial_state=state,
            log_decay=decay,
            normalize=normalize,
            return_state=True,
            backend=backend,
        )
        loss = out.double().square().sum() + final.double().sum()
        return [out.detach(), final.detach(), *torch.autograd.grad(loss, leaves)]

    found = run("cuda", *given, decay)
    for x, again in zip(found, run("cuda", *given, decay), strict=True):
        assert torch.equal(x, again)
    for x, y in zip(found, run("torch", *(x.double() for x in (*given, decay))), strict=True):
        assert (x.double() - y).norm() <= max(2e-5, 6 * torch.finfo(dtype).eps) * y.norm()
    with torch.no_grad():
        options = {"log_decay": decay[..., :-1], "normalize": normalize, "return_state": True}
        before = [x[:, :, :-1] for x in given[:3]]
        _, state = causal_linear_attention(*before, initial_state=given[3], backend="cuda", **options)
        rows = [x[:, :, -1] for x in given[:3]]
        out, state = causal_linear_attention_step(*rows, state, log_decay=decay[..., -1], normalize=normalize)
    torch.testing.assert_close(out.float(), found[0][:, :, -1].float(), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(state, found[1], rtol=1e-3, atol=1e-3)


def test_decays_in_packed_sequences_and_opcheck():
    q, k, v, _ = (x.detach() for x in draw((1, 2, 1201, 48, 48), torch.bfloat16))
    decay = -torch.rand(2, device="cuda")
    options = {"cu_seqlens": torch.tensor([0, 3, 3, 1200, 1201], device="cuda"), "log_decay": decay}
    found, expected = (causal_linear_attention(q, k, v, backend=x, **options) for x in ("cuda", "torch"))
    assert (found.float() - expected.float()).norm() <= 2e-2 * expected.float().norm()
    arguments = (q, k, v, decay.exp(), None, False, 1e-6, True)
    assert set(torch.library.opcheck(operators.decayed_forward, arguments).values()) == {"SUCCESS"}
    out, final, inverse, kept = operators.decayed_forward(*arguments)
    arguments = (out, final, q, k, v, decay.exp(), None, inverse, kept, False, 1e-6)
    assert set(torch.library.opcheck(operators.decayed_backward, arguments).values()) == {"SUCCESS"}


def test_prompt_then_steps():
    q, k, v, _ = draw((2, 3, 70, 16, 24), normalize=True)
    with torch.no_grad():
        whole, last = causal_linear_attention(q, k, v, normalize=True, return_state=True)
        prompt = (x[:, :, :64] for x in (q, k, v))
        _, state = causal_linear_attention(*prompt, normalize=True, return_state=True)
        for i in range(64, 70):
            rows = (x[:, :, i] for x in (q, k, v))
            out, state = causal_linear_attention_step(*rows, state, normalize=True)
            torch.testing.assert_close(out, whole[:, :, i], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_inputs_on_another_device_than_the_current_one():
    given = draw((1, 2, 200, 16, 16))
    expected = everything(*given, False)
    with torch.no_grad():
        moved = [x.to("cuda:1").requires_grad_() for x in given]
    with torch.cuda.device(0):
        found = everything(*moved, False)
    for x, y in zip(found, expected, strict=True):
        assert x.device.index == 1
        torch.testing.assert_close(x.to("cuda:0"), y)


def test_heads_too_wide_for_the_kernels_run_on_pytorch():
    q, k, v, _ = draw((1, 1, 50, 130, 16))
    assert causal_linear_attention(q, k, v).shape == v.shape
    with pytest.raises(ValueError, match="expected D and M of at most 128"):
        causal_linear_attention(q, k, v, backend="cuda")


def test_peak_memory_is_the_outputs():
    """And the kept states. Heads that do not fill the GPU would need scratch memory for their segments."""
    q, k, v, _ = draw((8, 256, 2048, 64, 64), torch.bfloat16)
    grad = torch.rand_like(v)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(causal_linear_attention(q, k, v, backend="cuda"), (q, k, v), grad)
    assert torch.cuda.max_memory_allocated() - before <= 4.3 * q.numel() * q.element_size()
