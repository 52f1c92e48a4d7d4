"""Fig. 8b and 10b of LLN: what the loss scales of several seeds decide."""

from pathlib import Path

import pytest

from pipeline.studies.analysis.logged_runs import _loss_scales
from pipeline.studies.analysis.models import LoggedRun


def half(method: str, seed: int, inverse: float, alpha: float | None = None) -> LoggedRun:
    """A run in fp16 whose inverse loss scale is `inverse` in every update."""
    records = {update: {"loss_scale": 1 / inverse, "wpb": 8.0} for update in range(1, 9)}
    settings = {"lln_alpha": alpha, "decoder_layers": 1, "decoder_embed_dim": 8, "decoder_attention_heads": 1}
    return LoggedRun(Path(f"{method}-{seed}"), method, seed, 0, 4, records, {}, settings, "corpus")


@pytest.mark.parametrize(("largest", "verdict"), [(300, "contradicted"), (90, "confirmed")])
def test_every_seed_counts(largest, verdict):
    runs = [half("softmax", seed, 100 + seed) for seed in range(3)]
    runs += [half("lln", seed, largest + seed) for seed in range(3)]
    runs += [half("lln", seed, 1, alpha=2) for seed in range(3)]
    runs += [half("lln", seed, 2000 + seed, alpha=4) for seed in range(3)]
    steep, level = _loss_scales(runs)["checks"]
    assert level["verdict"] == verdict and "3 seeds" in level["measured"]
    assert steep["verdict"] == "confirmed"
