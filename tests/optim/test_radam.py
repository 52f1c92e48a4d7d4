"""RAdam against the published algorithm, and the clipping of each tensor."""

import math
from types import SimpleNamespace

import pytest
import torch

from user_dir.errors import UserError
from user_dir.optim import RAdam


def radam(parameters, **options):
    settings = {
        "lr": [0.1],
        "radam_beta1": 0.9,
        "radam_beta2": 0.999,
        "radam_eps": 1e-8,
        "radam_clip_tensor": 0.0,
        "weight_decay": 0.0,
        "fp16": False,
        "memory_efficient_fp16": False,
        "memory_efficient_bf16": False,
        "fp16_no_flatten_grads": False,
    }
    return RAdam(SimpleNamespace(**{**settings, **options}), parameters)


def published(x, gradients, lr, decay, betas, eps):
    """Liu et al. 2019, algorithm 2, with the weights decayed apart from the loss, as in the authors' code."""
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    first, second = betas
    longest = 2 / (1 - second) - 1
    for t, gradient in enumerate(gradients, 1):
        square = second * square + (1 - second) * gradient**2
        mean = first * mean + (1 - first) * gradient
        length = longest - 2 * t * second**t / (1 - second**t)
        x = x - decay * lr * x
        step = mean / (1 - first**t)
        if length > 5:
            part = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            step = step * math.sqrt(part * (1 - second**t)) / (square.sqrt() + eps)
        x = x - lr * step
    return x


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.8, 0.99), 1e-3)])
def test_equals_the_published_algorithm(betas, eps):
    start = torch.randn(5, dtype=torch.float64)
    gradients = torch.randn(200, 5, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    options = {"radam_beta1": betas[0], "radam_beta2": betas[1], "radam_eps": eps}
    optimizer = radam([parameter], weight_decay=0.01, **options)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(
        parameter.data, published(start, gradients, 0.1, 0.01, betas, eps), rtol=0, atol=1e-12
    )


def test_each_tensor_is_clipped_on_its_own_behind_the_loss_scale():
    large, small = (torch.nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    unused = torch.nn.Parameter(torch.ones(2))
    optimizer = radam([large, small, unused], radam_clip_tensor=1.0)
    large.grad, small.grad = 64 * torch.tensor([3.0, 4.0]).double(), 64 * torch.tensor([0.3, 0.4]).double()
    optimizer.step(scale=64.0)
    torch.testing.assert_close(large.grad, torch.tensor([0.6, 0.8]).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(small.grad, torch.tensor([0.3, 0.4]).double(), rtol=1e-12, atol=0)
    assert (large != 1).all() and (small != 1).all() and (unused == 1).all()


def test_what_is_refused():
    parameters = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(UserError, match="--radam-clip-tensor is -1"):
        radam(parameters, radam_clip_tensor=-1)
    for clip in (0.0, 1.0):
        with pytest.raises(UserError, match="add --fp16-no-flatten-grads"):
            radam(parameters, radam_clip_tensor=clip, fp16=True)
        radam(parameters, radam_clip_tensor=clip, fp16=True, fp16_no_flatten_grads=True)
    for kind in ("memory_efficient_fp16", "memory_efficient_bf16"):
        with pytest.raises(UserError, match="lacks a memory-efficient form; use --bf16"):
            radam(parameters, **{kind: True})
