"""Whether a run has the settings of the checkpoint that it resumes from or starts with."""

import ast
import os
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from omegaconf import OmegaConf

from ..errors import UserError
from .checkpoints import has_attention, positions_in
from .options import options_of_missing_network

# Settings of the model or the task that may differ: they change how, not what is computed, or are fairseq's
# copies of settings of other groups. Training fills in the dictionary's fingerprint and the images' shape,
# which are checked when a model is loaded.
FREE = {
    "attention_backend",
    "checkpoint_activations",
    "offload_activations",
    "min_params_to_wrap",
    "log_attention_statistics",
    "dictionary_sha256",
    "data",
    "seed",
    "batch_size",
    "batch_size_valid",
    "dataset_impl",
    "data_buffer_size",
    "tpu",
    "use_plasma_view",
    "plasma_path",
    "levels",
    "height",
    "width",
    "channels",
    "classes",
    "allow_changed",
}
# These may differ, too, where a model starts with the weights of another one. Sizes that the weights depend
# on are compared with the weights.
FREE_AT_START = (
    "dropout",
    "layerdrop",
    "layers_to_keep",
    "init_std",
    "max_positions",
    "max_target_positions",
    "tokens_per_sample",
)
# Settings that the data of Long Range Arena decide if they are open, None until the trainer is made; of these
# settings only its models and its task have the second set.
LEFT_OPEN = {"max_positions", "glu_dim", "classifier_dim", "lra_task"}
LRA_ALONE = {"classifier_dim", "lra_task"}
COSINE = "cosformer_length"
"""cosFormer's M, by default the model's positions: no weight has its size."""
HEADS = ("pooler_", "load_checkpoint_heads", "spectral_norm_", "untie_weights_roberta")
OURS = "attention_backend"
"""A setting that every model of the plugin has."""

PRECISION = {
    "fp16",
    "bf16",
    "amp",
    "memory_efficient_fp16",
    "memory_efficient_bf16",
    "fp16_no_flatten_grads",
    "fp16_init_scale",
    "fp16_scale_window",
    "fp16_scale_tolerance",
    "on_cpu_convert_precision",
    "min_loss_scale",
    "threshold_loss_scale",
    "amp_batch_retries",
    "amp_init_scale",
    "amp_scale_window",
}
# fairseq's copies of settings of other groups.
COPIES = {
    "lr",
    "max_update",
    "sentence_avg",
    "tpu",
    "ddp_backend",
    "fp16",
    "memory_efficient_fp16",
    "memory_efficient_bf16",
    "fp16_no_flatten_grads",
    "maximize_best_checkpoint_metric",
    "distributed_world_size",
}
RESUMED: dict[str, set[str]] = {
    "common": {
        "no_progress_bar",
        "log_interval",
        "log_format",
        "log_file",
        "aim_repo",
        "aim_run_hash",
        "tensorboard_logdir",
        "wandb_project",
        "azureml_logging",
        "cpu",
        "tpu",
        "user_dir",
        "empty_cache_freq",
        "all_gather_list_size",
        "profile",
        "reset_logging",
        "suppress_crashes",
        "use_plasma_view",
        "plasma_path",
    },
    "dataset": {
        "num_workers",
        "dataset_impl",
        "data_buffer_size",
        "validate_interval",
        "validate_interval_updates",
        "validate_after_updates",
        "disable_validation",
        "max_tokens_valid",
        "batch_size_valid",
        "ignore_unused_valid_subsets",
        "gen_subset",
        "num_shards",
        "shard_id",
        "batch_size",
        "max_tokens",
    },
    "optimization": {
        "max_epoch",
        "max_update",
        "stop_time_hours",
        "stop_min_lr",
        "update_freq",
        "debug_param_names",
    },
    "checkpoint": {
        "save_dir",
        "restore_file",
        "finetune_from_model",
        "continue_once",
        "reset_dataloader",
        "reset_lr_scheduler",
        "reset_meters",
        "reset_optimizer",
        "optimizer_overrides",
        "save_interval",
        "save_interval_updates",
        "keep_interval_updates",
        "keep_interval_updates_pattern",
        "keep_last_epochs",
        "keep_best_checkpoints",
        "no_save",
        "no_epoch_checkpoints",
        "no_last_checkpoints",
        "no_save_optimizer_state",
        "patience",
        "checkpoint_suffix",
        "checkpoint_shard_count",
        "load_checkpoint_on_all_dp_ranks",
        "write_checkpoints_asynchronously",
    },
    "criterion": COPIES | {"compile", "chunk_rows"},
    "optimizer": COPIES,
    "lr_scheduler": COPIES,
    "ema": set(),
    "bmuf": COPIES,
}
"""What may change, besides `FREE`, when a run resumes in its own folder, by fairseq's group: its end, log
and saves, workers and how the batch is shared between processes. All else must be as it was; groups that are
not named here have no part in training."""
CHECKED = ("model", "task", "distributed_training", *RESUMED)
STARTS = {
    "reset_optimizer": ("optimizer", "lr_scheduler", "optimization"),
    "reset_lr_scheduler": ("lr_scheduler", "optimization"),
    "reset_dataloader": ("dataset",),
}
"""Options that restart a part of a run, and the groups whose settings may then change."""
SAME_STATE = {"adamw_fused": "adam"}
"""Optimizers that can continue each other's runs."""
ALLOWED = "FAIRSEQ_ALLOW_CHANGED"
"""Environment variable with `--allow-changed` for models without that setting, which are fairseq's own."""

Settings = Mapping[str, Any]
Difference = tuple[str, Any, Any]
"""A setting, and its value before and now."""


def check_same_settings(filename: str, saved: Mapping[str, Any], cfg: Any, resumes: bool) -> None:
    """Refuse a checkpoint of another run whose weights mean something else in the model of `cfg`.

    Where training `resumes`, all settings of model and task must be those of before; where it only takes
    the weights (`--finetune-from-model`, `--reset-optimizer`), those of the model that decide what the
    weights compute. `--allow-changed` names settings that may differ.

    Args:
        filename: of the checkpoint, for the message.
        saved: its configuration, with the groups `model` and `task`.
        cfg: fairseq's configuration of this run.
        resumes: whether the state of the optimizer is taken over.

    Raises:
        UserError: naming each setting that differs, and its first value.
    """
    given = {group: _values(cfg[group]) for group in ("model", "task")}
    before = {group: _values(saved[group]) for group in ("model", "task")}
    if OURS not in before["model"] or OURS not in given["model"]:
        return
    idle = options_of_missing_network(given["model"])
    found = [*differences("arch", before["model"], given["model"], FREE | idle.keys())]
    if resumes:
        found += differences("task", before["task"], given["task"])
    else:
        found = [one for one in found if not is_free_at_start(one[0]) and one[0] != COSINE]
        found += _other_cosine(before, given)
    _refuse(f"{filename} holds a model", "choose another checkpoint or --save-dir", found, given["model"])


def check_same_run(folder: str, saved: Mapping[str, Any], cfg: Any) -> None:
    """Refuse to resume the run of a `folder` with other settings than it began with.

    The rule is `RESUMED`, for every command that trains. `--allow-changed` names further settings that may
    differ.

    Args:
        folder: the `--save-dir`, for the message.
        saved: the configuration in its checkpoint, by fairseq's groups.
        cfg: fairseq's configuration of this run.

    Raises:
        UserError: naming each setting that differs, and its first value.
    """
    before, given = ({group: _values(of.get(group)) for group in CHECKED} for of in (saved, cfg))
    started = {
        group for reset, groups in STARTS.items() if given["checkpoint"].get(reset) for group in groups
    }
    found = [*differences("arch", before["model"], given["model"])]
    found += differences("task", before["task"], given["task"])
    for group, free in RESUMED.items():
        if group not in started:
            found += differences(group, before[group], given[group], free)
    if before["common"].get("cpu") != given["common"].get("cpu"):
        found = [one for one in found if one[0] not in PRECISION]  # not every device has every precision
    if _ends(before) and _ends(given):
        found = [one for one in found if one[0] != "total_num_update"]
    found += [] if "dataset" in started else _other_batch(before, given)
    found += _other_start(before["checkpoint"], given["checkpoint"])
    overrides = given["checkpoint"].get("optimizer_overrides") or "{}"
    found = [one for one in found if one[0] not in _literal(overrides)]
    _refuse(f"{folder} holds a run", "choose another --save-dir", found, given["model"])


def allowed_changes(model: Any) -> set[str]:
    """The names that `--allow-changed` has, in the settings of the model or for one of fairseq's own."""
    given = f"{_values(model).get('allow_changed') or ''},{os.environ.get(ALLOWED, '')}"
    return {name.strip() for name in given.split(",")} - {""}


def _refuse(what: str, advice: str, found: Sequence[Difference], model: Settings) -> None:
    """UserError for the differences that the user has not allowed."""
    allowed = allowed_changes(model)
    names = [name for name, *_ in found if name not in allowed]
    if names:
        name, old, new = next(one for one in found if one[0] == names[0])
        flag = ",".join(sorted({*names, *allowed}))
        as_it_was = "leave it out" if old is None else "set it as it was"
        raise UserError(
            f"{what} whose {name} is {old!r}, not {new!r}; {as_it_was}, {advice}, or add "
            f"--allow-changed {flag}"
        )


def _ends(groups: Mapping[str, Settings]) -> bool:
    """Whether the schedule is as long as the run, fairseq's default."""
    return groups["lr_scheduler"].get("total_num_update") == groups["optimization"].get("max_update")


def _other_batch(before: Mapping[str, Settings], given: Mapping[str, Settings]) -> Iterator[Difference]:
    """Whether an update takes another number of samples or tokens, however the processes share them."""
    for name in ("batch_size", "max_tokens"):
        old, new = (_shares(name, groups) for groups in (before, given))
        if old is not None and new is not None and old[0] != new[0]:
            yield name, old[1], new[1]


def _other_start(before: Settings, given: Settings) -> Iterator[Difference]:
    """Whether the run began with the weights of another checkpoint, if both are still there."""
    old, new = (x.get("finetune_from_model") for x in (before, given))
    if old and new and os.path.exists(old) and os.path.exists(new) and not os.path.samefile(old, new):
        yield "finetune_from_model", old, new


def _shares(name: str, groups: Mapping[str, Settings]) -> tuple[list[int], str | None] | None:
    """An update's samples or tokens for each `--update-freq`, and how they are made up; None if not known.

    Both are empty where no limit is set.
    """
    if name not in groups["dataset"]:
        return None
    size, steps = groups["dataset"].get(name), groups["optimization"].get("update_freq")
    processes = groups["distributed_training"].get("distributed_world_size")
    if not (steps and processes):
        return None
    if size is None:
        return [], None
    return (
        [size * step * processes for step in steps],
        f"{size} x --update-freq {','.join(map(str, steps))} x {processes} processes",
    )


def _literal(value: Any) -> Any:
    """Lists and dictionaries that are written as text, such as Adam's betas; other values as they are."""
    if isinstance(value, str) and value[:1] in ("(", "[", "{"):
        with suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
    return list(value) if isinstance(value, tuple) else value


def differences(
    kind: str, saved: Settings, given: Settings, free: Collection[str] = FREE
) -> Iterator[Difference]:
    """The settings, less those that are `free`, that both have with different values.

    `kind` is what `_name` is called.
    """
    of_lra = not LRA_ALONE.isdisjoint(given)
    decided = {key for key in LEFT_OPEN if of_lra and None in (saved.get(key), given.get(key))}
    for key in saved:
        if key not in given or key in free or key in decided:
            continue
        old, new = (_literal(x[key]) for x in (saved, given))
        if old != new and not (key == "_name" and SAME_STATE.get(old, old) == SAME_STATE.get(new, new)):
            yield (kind if key == "_name" else key), old, new


def is_free_at_start(name: str) -> bool:
    """Whether a setting of the model may differ where only weights are taken over."""
    return name.endswith(FREE_AT_START) or name.startswith(HEADS)


def _other_cosine(before: Mapping[str, Settings], given: Mapping[str, Settings]) -> Iterator[Difference]:
    """Whether cosFormer would have another M."""
    old, new = (groups["model"].get(COSINE) or positions_in(groups) for groups in (before, given))
    if has_attention(Namespace(**before["model"]), "cosformer") and old and new and old != new:
        yield COSINE, old, new


def _values(group: Any) -> dict[str, Any]:
    """The settings of a group, whatever holds them, less those that only point at another one."""
    if OmegaConf.is_config(group):
        group = OmegaConf.to_container(group, resolve=True, enum_to_str=True)
    values = vars(group) if isinstance(group, Namespace) else dict(group or {})
    return {key: x for key, x in values.items() if not (isinstance(x, str) and x.startswith("${"))}
