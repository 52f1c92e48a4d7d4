"""Tiny experiments: of each kind of model that scripts train its YAML, its data, and one run of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from lab.run.kinds import KINDS
from lab.run.launch import Machines
from lab.run.plan import Request, planned
from lab.run.train import train_alone
from tests.helpers import logs
from tests.helpers.images import write_images
from tests.helpers.lra import write_lra
from tests.helpers.once import filled_once

YAML = """
common: {{seed: 5, log_format: json, log_interval: 1}}
dataset: {{batch_size: 8, required_batch_size_multiple: 1, num_workers: 0}}
distributed_training: {{distributed_world_size: 1}}
optimization: {{max_update: {updates}, update_freq: [1], lr: [0.01], clip_norm: 0.0}}
checkpoint: {{no_epoch_checkpoints: true, save_interval_updates: 4, keep_interval_updates: 1{best}}}
{rest}
"""
BY_ACCURACY = ", best_checkpoint_metric: accuracy, maximize_best_checkpoint_metric: true"
LRA = """
task: {_name: lra, lra_task: listops, data: nowhere}
criterion: {_name: lra}
optimizer: {_name: adam_value_clip, adam_betas: "(0.9, 0.999)", adam_eps: 1.0e-06}
lr_scheduler: {_name: %s, warmup_updates: 2, total_num_update: 40}
model: {_name: %s, encoder_embed_dim: 16, encoder_ffn_embed_dim: 24}
"""
REST = {
    "masked_lm": """
task: {_name: masked_lm, data: nowhere, tokens_per_sample: 32, sample_break_mode: none, mask_prob: 0.15}
criterion: {_name: chunked_masked_lm}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: polynomial_decay, warmup_updates: 2, total_num_update: 40}
model: {_name: roberta_transnormer_t1, encoder_layers: 2, encoder_embed_dim: 16, encoder_attention_heads: 2,
  dropout: 0.1}
""",
    "lra_skyformer": LRA % ("one_cycle", "lra_skyformer"),
    "lra_state_space": LRA % ("cosine_warmup", "lra_state_space"),
    "pixels": """
task: {_name: pixels, data: nowhere}
criterion: {_name: pixel_likelihood}
optimizer: {_name: radam, radam_clip_tensor: 1.0}
lr_scheduler: {_name: fixed}
model: {_name: pixel_linear, decoder_embed_dim: 24, decoder_layers: 2, decoder_attention_heads: 2,
  decoder_ffn_embed_dim: 32, dropout: 0.0, attention_dropout: 0.0, activation_dropout: 0.0}
""",
    "image_classification": """
task: {_name: image_classification, data: nowhere, augmentation: shift-flip}
criterion: {_name: classification}
optimizer: {_name: adam}
lr_scheduler: {_name: fixed}
model: {_name: vit, patch_size: 2, encoder_attention: "softmax,linformer", linformer_rank: 3,
  encoder_layers: 2, encoder_embed_dim: 8, encoder_attention_heads: 2, encoder_ffn_embed_dim: 16}
""",
}
UPDATES = {"masked_lm": 40, "lra_skyformer": 20, "pixels": 80, "image_classification": 40}
DATA: dict[str, Callable[[Path], Path]] = {
    "lra_skyformer": write_lra,
    "lra_state_space": lambda folder: write_lra(folder, pipeline="state-space"),
    "pixels": write_images,
    "image_classification": lambda folder: write_images(folder, size=(4, 4, 1)),
}


def write_experiment(folder: Path, base: str, *architectures: str, **changes: dict[str, Any]) -> Path:
    """Write base.yaml, with `changes` in its groups, and a YAML of each architecture; returns the first."""
    folder.mkdir()
    OmegaConf.save(OmegaConf.merge(OmegaConf.create(base), changes), folder / "base.yaml")
    for name in architectures:
        (folder / f"{name}.yaml").write_text(f"defaults: [_self_, base]\nmodel: {{_name: {name}}}\n")
    return folder / f"{architectures[0]}.yaml"


class Tiny(NamedTuple):
    """An experiment; `run` is the folder of a finished training."""

    task: str
    config: Path
    data: Path
    run: Path
    updates: int

    @property
    def script(self) -> str:
        """What trains it."""
        return KINDS[self.task].command


def tiny(kind: str, folder: Path, data: Path | None = None) -> Tiny:
    """The experiment of a kind whose files are in `folder`; its data may be elsewhere."""
    task = "lra" if kind.startswith("lra") else kind
    config = folder / "tiny" / f"{kind}.yaml"
    return Tiny(task, config, data or folder / "some data", folder / "a run", UPDATES.get(kind, 4))


def write(kind: str, folder: Path, data: Path | None = None) -> Tiny:
    """Write the YAML of a kind and, unless they are given, its data."""
    made = tiny(kind, folder, data)
    best = BY_ACCURACY if made.task in ("lra", "image_classification") else ""
    made.config.parent.mkdir(parents=True)
    made.config.write_text(YAML.format(updates=made.updates, best=best, rest=REST[kind]))
    if data is None:
        DATA[kind](made.data)
    return made


def train_run(config: Path, data: Path, folder: Path, flags: Sequence[object] = ()) -> None:
    """Train as the commands do, on the CPU."""
    train_alone(planned(Request(config, data, Machines(0), folder, list(map(str, flags)))).opened())


def trained(kind: str, tmp_path_factory, data: Path | None = None) -> Tiny:
    """One that all processes of the tests share, trained once; tests only read it."""

    def fill(folder: Path) -> None:
        made = write(kind, folder, data)
        train_run(made.config, made.data, made.run)

    return tiny(kind, filled_once(tmp_path_factory, f"tiny {kind}", fill), data)


def losses(run: Path) -> dict[int, float]:
    """The losses in the log of a run, by update."""
    return logs.losses((run / "train.log").read_text())
