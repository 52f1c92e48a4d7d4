"""Schedules against their published formulas, and Adam behind clipped values against torch's."""

import math
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import FairseqAdam

from tests.helpers.cases import exhaustive
from user_dir.errors import UserError
from user_dir.optim import CosineWarmupSchedule, OneCycleSchedule, ValueClippedAdam


def adam(kind=FairseqAdam, values=(0.0,), **options):
    settings = {"lr": [0.3], "adam_betas": "(0.9, 0.999)", "adam_eps": 1e-12, "weight_decay": 0.0}
    parameter = torch.nn.Parameter(torch.tensor(values))
    return kind(Namespace(**settings, tpu=False, fp16_adam_stats=False, **options), [parameter]), parameter


def schedule(kind, optimizer, warmup, total, max_update=0, rate=0.3):
    config = SimpleNamespace(warmup_updates=warmup, total_num_update=total, max_update=max_update, lr=[rate])
    return kind(config, optimizer)


@pytest.mark.parametrize(("warmup", "total"), [(2, 3), (7, 50), (49, 50), exhaustive(1000, 50_000)])
def test_one_cycle_is_torchs(warmup, total):
    ours, _ = adam()
    cycle = schedule(OneCycleSchedule, ours, warmup, None, max_update=total)
    theirs = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0, betas=(0.9, 0.999))
    reference = torch.optim.lr_scheduler.OneCycleLR(
        theirs, max_lr=0.3, total_steps=total, pct_start=warmup / total, anneal_strategy="linear"
    )
    theirs.step()
    for update in range(total):
        rate = cycle.step_update(update)
        [group] = theirs.param_groups
        assert ours.get_lr() == rate == pytest.approx(group["lr"], rel=1e-6, abs=1e-12)
        assert ours.param_groups[0]["betas"] == pytest.approx(group["betas"], rel=1e-9)
        if update < total - 1:
            reference.step()
    assert cycle.step_update(total + 100) == cycle.step_update(total - 1) == pytest.approx(0.3 / 250_000)


def test_cosine_warmup_is_the_published_one_and_rises_again():
    optimizer, _ = adam()
    cosine = schedule(CosineWarmupSchedule, optimizer, 10, 50)
    for update in range(120):
        expected = update / 10 if update < 10 else 0.5 * (1 + math.cos(math.pi * (update - 10) / 40))
        assert cosine.step_update(update) == optimizer.get_lr() == pytest.approx(0.3 * expected)
    assert cosine.step_update(50) == pytest.approx(0) and cosine.step_update(90) == pytest.approx(0.3)


def test_cosine_equals_fairseqs_within_one_period():
    from fairseq.optim.lr_scheduler.cosine_lr_scheduler import CosineLRSchedule, CosineLRScheduleConfig

    config = CosineLRScheduleConfig(warmup_updates=10, lr=[0.3], max_update=50)
    theirs = CosineLRSchedule(config, adam()[0])
    ours = schedule(CosineWarmupSchedule, adam()[0], 10, None, max_update=50)
    for update in range(50):
        assert ours.step_update(update) == pytest.approx(theirs.step_update(update))


@pytest.mark.parametrize(
    ("kind", "warmup", "total"),
    [
        (OneCycleSchedule, 1, 50),
        (OneCycleSchedule, 50, 50),
        (OneCycleSchedule, 2, 0),
        (CosineWarmupSchedule, 50, 50),
        (CosineWarmupSchedule, 0, 0),
    ],
)
def test_lengths_that_cannot_be(kind, warmup, total):
    with pytest.raises(UserError, match=f"--warmup-updates is {warmup} and the last update {total}"):
        schedule(kind, adam()[0], warmup, total)


@pytest.mark.parametrize("kind", [OneCycleSchedule, CosineWarmupSchedule])
def test_one_rate(kind):
    config = SimpleNamespace(warmup_updates=2, total_num_update=9, max_update=0, lr=[0.1, 0.2])
    with pytest.raises(UserError, match="has one --lr, not 2"):
        kind(config, adam()[0])


def test_one_cycle_needs_betas():
    from fairseq.optim.sgd import SGD

    settings = Namespace(lr=[0.3], momentum=0.9, weight_decay=0.0)
    with pytest.raises(UserError, match="choose an Adam"):
        schedule(OneCycleSchedule, SGD(settings, [torch.nn.Parameter(torch.zeros(1))]), 2, 9)


def test_values_are_clipped_behind_the_loss_scale():
    start = (1.0, 2.0, 3.0)
    ours, parameter = adam(ValueClippedAdam, start, clip_value=0.5)
    theirs = torch.nn.Parameter(torch.tensor(start))
    reference = torch.optim.Adam([theirs], lr=0.3, eps=1e-12)
    for scale, gradient in ((1.0, [0.1, -3.0, 0.2]), (64.0, [0.4, 0.3, 7.0])):
        parameter.grad = scale * torch.tensor(gradient)
        ours.step(scale=scale)
        theirs.grad = torch.tensor(gradient).clamp(-0.5, 0.5)
        reference.step()
        torch.testing.assert_close(parameter, theirs)


def test_a_clip_value_that_cannot_be():
    with pytest.raises(UserError, match="--clip-value is 0"):
        adam(ValueClippedAdam, clip_value=0)
