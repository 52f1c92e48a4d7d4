"""alpha and beta of LLN attention: fixed, over several workers, and from checkpoints without statistics."""

import logging
import multiprocessing

import pytest
import torch

from tests.helpers.lm import build_lm, tokens
from user_dir.attention import build_attention, lln_attention
from user_dir.attention.parts.log_normal_scale import LogNormalScale
from user_dir.attention.parts.moment_matching import AUTHORS_CONSTANTS

WORKERS = 2


def batches():
    """Three batches of four rows: q, k and padding; the workers' halves differ in length and in mean."""
    generator = torch.Generator().manual_seed(3)
    for size in (0.5, 1.0, 2.0):
        q, k = size * torch.randn(2, 4, 2, 9, 3, generator=generator)
        q[2:] += 5.0
        yield q, k, torch.arange(9).expand(4, -1) >= torch.tensor([[9], [9], [3], [1]])


def averaged(rows):
    """The running average over `rows` of each batch, and how many batches it has."""
    scale = LogNormalScale(0.15, -0.35, running=True)
    for q, k, padding in batches():
        q.requires_grad_()
        scale(q[rows], k[rows], padding[rows])
    return scale.sigma.tolist(), scale.batches.item()


def worker(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORKERS
    )
    found = averaged(slice(2 * rank, 2 * rank + 2))
    torch.distributed.destroy_process_group()
    return found


def test_two_workers_average_what_one_would(tmp_path):
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        first, second = pool.starmap(worker, [(rank, tmp_path) for rank in range(WORKERS)], chunksize=1)
    alone = averaged(slice(None))
    assert first == second
    assert first[0] == pytest.approx(alone[0], rel=1e-6)
    assert first[1] == alone[1] == 3
    assert averaged(slice(2))[0] != pytest.approx(alone[0], rel=0.1)  # half of the rows say something else


@pytest.mark.parametrize("name", ["lln", "lln_diag"])
@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_fixed_exponents_take_no_statistics(name, statistics):
    options = {"statistics": statistics, "alpha": 1.0, "beta": 3.0}
    module = build_attention(name, 12, 2, causal=True, **options)
    x = torch.randn(9, 2, 12)
    q, k, v = (module.heads(f(x)) for f in (module.q_proj, module.k_proj, module.v_proj))
    expected = lln_attention(q, k, v, alpha=1.0, beta=3.0, causal=True)
    got = module.attend(q, k, v, None)
    if name == "lln":
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(module(x[:, :1])[0], module(x)[0][:, :1])
    torch.testing.assert_close(module.eval()(x[:5])[0], module.train()(x)[0][:5])
    state: dict = {}
    steps = [module(x[i : i + 1], incremental_state=state)[0] for i in range(9)]
    torch.testing.assert_close(torch.cat(steps), module(x)[0])


@pytest.mark.parametrize("arch", ["lln_lm", "lln_diag_lm"])
def test_checkpoints_without_statistics_load(arch, caplog):
    """The authors' modules have no buffers."""
    prefix = "lln_diag" if arch == "lln_diag_lm" else "lln"
    source = build_lm(arch, **{f"{prefix}_statistics": "batch"})
    state = {name: x for name, x in source.state_dict().items() if ".scale." not in name}
    assert len(state) < len(source.state_dict())
    with caplog.at_level(logging.WARNING):
        same = build_lm(arch, **{f"{prefix}_statistics": "batch"})
        same.load_state_dict(state)
    assert not caplog.records
    batch = tokens(2, 20)
    assert torch.equal(same(batch)[0], source(batch)[0])
    with caplog.at_level(logging.WARNING):
        build_lm(arch).load_state_dict(state)
    assert "layers.0.self_attn.scale.* is not in the checkpoint" in caplog.text
    assert "with statistics 'batch'" in caplog.text


def test_matched_exponents_have_a_lower_bound():
    """alpha beta = (p + |b| / p) / (2 a), p = sigma_q sigma_k: at least sqrt(|b|) / a, at p = sqrt(|b|)."""
    a, b = AUTHORS_CONSTANTS
    scale, bound = LogNormalScale(a, b, running=True), (abs(b) ** 0.5 / a) ** 0.5
    sigmas = torch.logspace(-1, 1, 41, dtype=torch.float64)
    for ratio in (0.3, 1.0, 4.0):
        for sigma in sigmas:
            alpha, beta = scale.matched(torch.stack([sigma * ratio, sigma / ratio]))
            assert float(alpha * beta) ** 0.5 >= bound * (1 - 1e-12)
    least = scale.matched(torch.full((2,), abs(b) ** 0.25, dtype=torch.float64))
    torch.testing.assert_close(torch.stack(least), torch.full((2,), bound, dtype=torch.float64))
    assert bound == pytest.approx(2.0025, abs=1e-4)
