"""Batch normalisation that leaves padding out."""

import multiprocessing
from types import SimpleNamespace

import torch
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import nn

from user_dir.modules import GatedRMSNorm, build_norm, tell_padding

WORKERS = 2


def test_it_is_torchs_over_the_real_positions():
    norm, theirs = build_norm("batchnorm", 5).double(), nn.BatchNorm1d(5).double()
    x = torch.randn(7, 3, 5, dtype=torch.float64, requires_grad=True)
    padding_mask = torch.arange(7) >= torch.tensor([7, 4, 1])[:, None]
    for _ in range(3):
        tell_padding(norm, padding_mask)
        got, expected = norm(x), theirs(x[~padding_mask.t()])
        torch.testing.assert_close(got[~padding_mask.t()], expected)
        assert not got[padding_mask.t()].any()
    torch.testing.assert_close(norm.running_var, theirs.running_var)
    tell_padding(norm, None)
    torch.testing.assert_close(norm.eval()(x).flatten(0, 1), theirs.eval()(x.flatten(0, 1)))
    norm(x).sum().backward()
    assert x.grad.isfinite().all()


def test_half_precision_keeps_float32_statistics():
    norm = build_norm("batchnorm", 5).bfloat16()
    x = torch.randn(7, 3, 5, dtype=torch.bfloat16)
    assert norm(x).dtype == norm.weight.dtype == torch.bfloat16
    assert norm.running_mean.dtype == norm.running_var.dtype == torch.float32
    assert norm.running_mean.any()


def test_gated_rms_norm():
    norm = GatedRMSNorm(4).double()
    nn.init.normal_(norm.scale), nn.init.normal_(norm.gate)
    x = torch.randn(3, 4, dtype=torch.float64)
    root = x.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(norm(x), norm.scale * x / (root + 1e-8) * torch.sigmoid(norm.gate * x))
    assert not norm(torch.zeros(1, 4)).any()


def statistics_in_validation(rank, folder):
    """The running statistics of a worker's two norms in training, and once validation begins."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORKERS
    )
    model = nn.Sequential(build_norm("batchnorm", 5), build_norm("batchnorm", 5))
    model(torch.randn(7, 3, 5, generator=torch.Generator().manual_seed(rank)) * (rank + 1) + rank)
    found = [torch.cat([torch.cat([norm.running_mean, norm.running_var]) for norm in model]).tolist()]
    trainer = SimpleNamespace(task=FairseqTask(None), get_model=lambda: model)
    Trainer.begin_valid_epoch(trainer, 1)
    found.append(torch.cat([torch.cat([norm.running_mean, norm.running_var]) for norm in model]).tolist())
    torch.distributed.destroy_process_group()
    return found


def test_workers_validate_with_the_mean_of_their_statistics(tmp_path):
    """That is the model that is saved."""
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        arguments = [(rank, tmp_path) for rank in range(WORKERS)]
        before, after = zip(*pool.starmap(statistics_in_validation, arguments, chunksize=1), strict=True)
    assert before[0] != before[1] and after[0] == after[1]
    torch.testing.assert_close(torch.tensor(after[0]), torch.tensor(before).mean(0))
