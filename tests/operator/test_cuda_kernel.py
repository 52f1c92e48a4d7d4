"""What can be shown of the CUDA kernel without a GPU: it compiles without spills, and its tiling is right.

`emulated_sweep` does in PyTorch what csrc/kernels/sweep.cu does, tile for tile: segments with sums of their
own, chunks, 16 x 16 pieces, TF32 factors for 16-bit inputs, the normaliser and its part in the gradient of q.
"""

import re
import shutil
import subprocess

import pytest
import torch

from causal_linear_attention.chunked import normalized
from causal_linear_attention.reference import quadratic

TILE = 16
NVCC = shutil.which("nvcc")


def tf32(x):
    """Rounded to 10 bits of mantissa, ties away from zero, as `cvt.rna.tf32` does."""
    bits = x.float().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def padded(x, rows, columns):
    return torch.nn.functional.pad(x, (0, columns - x.shape[1], 0, rows - x.shape[0]))


def product(left, right, into, exact, skip_upper=False, depth_of=None):
    """into += left @ right in pieces of 16 x 16; `depth_of(row)` ends the sum of a row of pieces."""
    cast = (lambda x: x) if exact else tf32
    for row in range(0, left.shape[0], TILE):
        depth = left.shape[1] if depth_of is None else depth_of(row)
        for column in range(0, right.shape[1], TILE):
            if skip_upper and column > row:
                continue
            piece = into[row : row + TILE, column : column + TILE]
            piece += cast(left[row : row + TILE, :depth]) @ cast(right[:depth, column : column + TILE])


def emulated_segment(a, b, c, state, z, begin, end, chunk, exact, eps, queries, inverse):
    """Rows [begin, end): the outputs and, per row, the inverse denominators or the slopes."""
    depth, width = (-(-x.shape[1] // TILE) * TILE for x in (a, c))
    outs, numbers = [], []
    for first in range(begin, end, chunk):
        rows = slice(first, min(first + chunk, end))
        count = rows.stop - rows.start
        at, bt, ct = (padded(x[rows], chunk, w) for x, w in ((a, depth), (b, depth), (c, width)))
        scores = torch.full((chunk, chunk), float("nan"))
        for row in range(0, chunk, TILE):
            scores[row : row + TILE, : row + TILE] = 0
        product(at, bt.T, scores, exact, skip_upper=True)
        scores = torch.where(torch.ones(chunk, chunk).tril() > 0, scores, 0.0)
        out = torch.zeros(chunk, width)
        product(at, state, out, exact)
        product(scores, ct, out, exact, depth_of=lambda row: row + TILE)
        z_before = state[a.shape[1] - 1].clone() if queries is not None else None
        if eps is not None:
            inverse_now = 1 / (at @ z[:depth] + scores.sum(1) + eps)
            numbers.append(inverse_now[:count])
            z += bt.sum(0)
        product(bt.T, ct, state, exact)
        out = out[:count, : c.shape[1]]
        if eps is not None:
            out = out * inverse_now[:count, None]
        if queries is not None:
            slope = -(queries[rows] * out).sum(1) * inverse[rows]
            running = z_before[: c.shape[1]] + torch.cumsum(c[rows], 0)
            out = out + slope[:, None] * running
            numbers.append(slope)
        outs.append(out)
    return torch.cat(outs), torch.cat(numbers) if numbers else None


def emulated_sweep(a, b, c, initial, *, chunk, segment, exact, eps=None, queries=None, inverse=None):
    """One head: outputs, final state (with the normaliser's column), inverse denominators or slopes."""
    depth, width = (-(-x.shape[1] // TILE) * TILE for x in (a, c))
    starts = range(0, len(a), segment)
    arguments = (chunk, exact, eps, queries, inverse)

    def run(state, z, begin, end):
        return emulated_segment(a, b, c, state, z, begin, end, *arguments)

    def empty():
        return torch.zeros(depth, width), torch.zeros(depth)

    state, z = empty()
    state[: a.shape[1], : c.shape[1]] = initial[:, : c.shape[1]]
    if eps is not None:
        z[: a.shape[1]] = initial[:, c.shape[1]]
    results = []
    for begin in starts:
        end = min(begin + segment, len(a))
        state_in, z_in = state.clone(), z.clone()
        results.append(run(state, z, begin, end))
        last_state, last_z = state, z
        sums, z_sums = empty()  # what the first launch leaves for the segments that follow
        run(sums, z_sums, begin, end)
        state, z = state_in + sums, z_in + z_sums
    out = torch.cat([x for x, _ in results])
    numbers = torch.cat([x for _, x in results]) if results[0][1] is not None else None
    final = last_state[: a.shape[1], : c.shape[1]]
    if eps is not None:
        final = torch.cat([final, last_z[: a.shape[1], None]], 1)
    return out, final, numbers


def relative_error(x, truth):
    return float((x.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [32, 64])
@pytest.mark.parametrize(
    ("length", "dim", "width", "segment"), [(70, 16, 24, 70), (200, 64, 64, 128), (300, 33, 7, 64)]
)
@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_tiling_gives_the_definition(normalize, length, dim, width, segment, chunk, dtype):
    exact, columns = dtype == torch.float32, width + normalize
    q, k, v, grad = ((torch.rand(length, x) + 0.1).to(dtype).float() for x in (dim, dim, width, width))
    initial, grad_state = torch.rand(dim, columns), torch.rand(dim, columns)
    leaves = [x.double().requires_grad_() for x in (q, k, v, initial)]
    four = [x[None, None] for x in leaves]
    out, state = normalized(quadratic, *four[:3], 1e-6, four[3]) if normalize else quadratic(*four)
    loss = (out * grad.double()).sum() + (state * grad_state.double()).sum()
    expected = [out[0, 0].detach(), state[0, 0].detach(), *torch.autograd.grad(loss, leaves)]

    sizes = {"chunk": chunk, "segment": -(-segment // chunk) * chunk, "exact": exact}
    found, final, inverse = emulated_sweep(q, k, v, initial, eps=1e-6 if normalize else None, **sizes)
    values, grads, zeros = v, grad, grad
    if normalize:
        values = torch.cat([v, torch.ones(length, 1)], 1)
        grads = grad * inverse[:, None]
        zeros = torch.cat([grads, torch.zeros(length, 1)], 1)
    more = {"queries": q, "inverse": inverse} if normalize else {}
    grad_q, _, slope = emulated_sweep(zeros, values, k, initial.T, **more, **sizes)
    wide = torch.cat([grads, slope[:, None]], 1) if normalize else grads
    backwards = [x.flip(0) for x in (values, wide, q)]
    grad_k, grad_initial, _ = emulated_sweep(*backwards, grad_state.T, **sizes)
    backwards = [x.flip(0) for x in (k, q, grads)]
    grad_v, _, _ = emulated_sweep(*backwards, grad_state[:, :width], **sizes)
    results = [found, final, grad_q, grad_k.flip(0), grad_v.flip(0), grad_initial.T]
    for x, truth in zip(results, expected, strict=True):
        assert relative_error(x, truth) < (2e-5 if exact else 4e-3)


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["75", "80", "90a"])
def test_compiles_without_spills(root, tmp_path, arch):
    source = root / "causal_linear_attention" / "csrc" / "kernels" / "sweep.cu"
    target = [f"-gencode=arch=compute_{arch},code=sm_{arch}", "-Xptxas", "-v"]
    done = subprocess.run(
        [NVCC, "-std=c++20", "-O3", *target, "-c", str(source), "-o", str(tmp_path / "x.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = done.stdout + done.stderr
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    assert spills and set(spills) == {"0"}, report
    most = 255 if arch == "75" else 128  # two blocks a multiprocessor from 8.0 on
    assert all(int(x) <= most for x in re.findall(r"Used (\d+) registers", report)), report
