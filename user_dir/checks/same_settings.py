"""Whether a run has the model and the task of the checkpoint it starts from."""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf

from ..errors import UserError

# Settings of the model or the task that may differ: they change how, not what is computed, or are fairseq's
# copies of settings of other groups. Training fills in the dictionary's fingerprint and the images' shape,
# which are checked when a model is loaded.
FREE = {
    "attention_backend", "checkpoint_activations", "offload_activations", "min_params_to_wrap",
    "log_attention_statistics", "dictionary_sha256", "data", "seed", "batch_size", "batch_size_valid",
    "dataset_impl", "data_buffer_size", "tpu", "use_plasma_view", "plasma_path", "levels", "height", "width",
    "channels", "classes", "allow_changed",
}  # fmt: skip
# Of a model that starts with the weights of another one these may differ as well. Sizes that the weights
# depend on are compared with theirs.
FREE_AT_START = (
    "dropout", "layerdrop", "layers_to_keep", "init_std", "max_positions", "max_target_positions",
    "tokens_per_sample",
)  # fmt: skip
# What the data of Long Range Arena decide where it is left open, None until the trainer is made; of these
# settings only its models and its task have the second set.
LEFT_OPEN = {"max_positions", "glu_dim", "classifier_dim", "lra_task"}
LRA_ALONE = {"classifier_dim", "lra_task"}
HEADS = ("pooler_", "load_checkpoint_heads", "spectral_norm_", "untie_weights_roberta")
OURS = "attention_backend"
"""A setting that every model of the plugin has."""

Settings = Mapping[str, Any]


def check_same_settings(filename: str, saved: Mapping[str, Namespace], cfg: Any, resumes: bool) -> None:
    """Refuse a checkpoint whose weights mean something else in the model of `cfg`.

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
    allowed = {name.strip() for name in (given["model"].get("allow_changed") or "").split(",")}
    found = [*differences("arch", before["model"], given["model"])]
    if resumes:
        found += differences("task", before["task"], given["task"])
    else:
        found = [one for one in found if not is_free_at_start(one[0])]
    names = [name for name, *_ in found if name not in allowed]
    if names:
        name, old, new = next(one for one in found if one[0] == names[0])
        flag = ",".join(sorted({*names, *allowed} - {""}))
        raise UserError(
            f"{filename} holds a model whose {name} is {old!r}, not {new!r}; set it as it was, choose "
            f"another checkpoint or --save-dir, or add --allow-changed {flag}"
        )


def differences(kind: str, saved: Settings, given: Settings) -> Iterator[tuple[str, Any, Any]]:
    """The settings that both have with different values; `kind` is what `_name` is called."""
    of_lra = not LRA_ALONE.isdisjoint(given)
    decided = {key for key in LEFT_OPEN if of_lra and None in (saved.get(key), given.get(key))}
    for key, old in saved.items():
        if key in given and key not in FREE | decided and old != given[key]:
            yield (kind if key == "_name" else key), old, given[key]


def is_free_at_start(name: str) -> bool:
    """Whether a setting of the model may differ where only weights are taken over."""
    return name.endswith(FREE_AT_START) or name.startswith(HEADS)


def _values(group: Any) -> dict[str, Any]:
    """The settings of a group, whatever holds them, less those that only point at another one."""
    if OmegaConf.is_config(group):
        group = OmegaConf.to_container(group, resolve=True, enum_to_str=True)
    values = vars(group) if isinstance(group, Namespace) else dict(group or {})
    return {key: x for key, x in values.items() if not (isinstance(x, str) and x.startswith("${"))}
