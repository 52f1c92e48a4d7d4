"""Some hundred calls of the C++ kernels through torch's bindings, for `test_sanitizers.py`: the sanitizers
built into them end the process at the first mistake. Prints the number of calls."""

import random

import torch

from causal_linear_attention import causal_linear_attention, decoding, extension, operators
from tests.helpers.definition import draw

SIZES = (0, 1, 2, 7, 15, 16, 17, 33, 64, 70)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def attend(chance: random.Random) -> None:
    """Output, states and gradients, of a batch or of packed sequences."""
    batch, heads = chance.choice((0, 1, 1, 2)), chance.choice((1, 2, 5))
    shape = (batch, heads, *(chance.choice(SIZES) for _ in range(3)))
    strides = chance.choice(("dense", "projected", "sliced", "columns"))
    normalize, keep = chance.random() < 0.5, chance.random() < 0.5
    dtype, group = chance.choice(DTYPES), chance.choice((1, 1, 3))
    q, k, v, state, grad, grad_state = draw(shape, dtype, normalize, keep, strides, group)
    options = {"scale": chance.choice((1.0, 0.5))}
    if batch == 1 and chance.random() < 0.5:
        cuts = sorted(chance.randint(0, shape[2]) for _ in range(3))
        options["cu_seqlens"] = torch.tensor([0, *cuts, shape[2]], dtype=torch.int32)
        state, grad_state = (None if x is None else x.repeat(4, 1, 1, 1) for x in (state, grad_state))
    if chance.random() < 0.5:
        _, _, inverse, kept = operators.forward(q, k, v, state, normalize, 1e-6, True, **options)
        operators.backward(grad, grad_state, q, k, v, state, inverse, kept, normalize, 1e-6, None, **options)
        return
    decay = torch.rand(shape[1:2] if chance.random() < 0.3 else shape[:3]).to(grad_state.dtype)
    decay[decay < 0.05] = 0
    given = q, k, v, decay, state
    _, _, inverse, kept = operators.decayed_forward(*given, normalize, 1e-6, True, **options)
    operators.decayed_backward(grad, grad_state, *given, inverse, kept, normalize, 1e-6, None, **options)


def step(chance: random.Random) -> None:
    """One position, of the operator and of TransNormer's attentions."""
    batch, heads, dim, width = (chance.choice(SIZES[:-2]) for _ in range(4))
    normalize = chance.random() < 0.5
    dtype, group = chance.choice(DTYPES), chance.choice((1, 1, 3))
    q, k, v, state, *_ = draw((batch, heads, 1, dim, width), dtype, normalize, group=group)
    decay = torch.rand(heads) if chance.random() < 0.5 else torch.rand(batch, heads)
    for given in (None, decay.to(state.dtype)):
        operators.step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state, normalize, 1e-6, given)
    q, k, v = torch.randn(3, batch, heads, 1, dim).unbind(0)
    angles, places = (torch.randn(dim), torch.rand(dim // 2).double()), torch.randint(5, (batch,))
    decoding.norm_step(q, k, v, *angles, places, torch.randn(batch, heads, dim, dim), normalize)
    keys, values = torch.randn(2, batch, heads, 5, dim).unbind(0)
    decoding.block_step(q, k, v, *angles, 0.5, places, keys, values, normalize)
    decoding.rms_norm(q, 1e-8)
    x, inner = torch.randn(1, batch, dim), width
    decoding.linear_step(x, 1e-8, torch.randn(inner, dim), torch.randn(inner), torch.randn(1, batch, inner))
    decoding.gated_step(x, 1e-8, torch.randn(2 * inner, dim), None, torch.randn(dim, inner), None)


def main() -> None:
    assert extension.loaded("cpp"), extension.reason("cpp")
    calls = 0
    for name in extension.available_instruction_sets():
        extension.choose_instruction_set(name)
        chance = random.Random(calls)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            for _ in range(60):
                attend(chance)
                step(chance)
                calls += 2
            long = torch.rand(1, 1, 1100, 24).requires_grad_()  # cut among the threads
            causal_linear_attention(long, long, long, backend="cpp").sum().backward()
            calls += 1
    print(calls)


if __name__ == "__main__":
    main()
