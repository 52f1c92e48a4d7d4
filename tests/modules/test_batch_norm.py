"""Batch normalisation that leaves padding out."""

import torch
from torch import nn

from user_dir.modules import GatedRMSNorm, build_norm, tell_padding


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
