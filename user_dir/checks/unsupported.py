"""Options of fairseq's that do not work with the task or without a package, refused by name."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from ..errors import UserError

NEED = (("common", "tpu", "torch_xla"), ("checkpoint", "write_checkpoints_asynchronously", "iopath"))
"""Options, with their group, and a package without which fairseq ends in a traceback or trains nothing."""
NOT_FOR_LANGUAGE = {
    "constraints": "is not for language models",
    "print_alignment": "shows which word of the source a word translates, and a language model has no source",
    "print_step": "is for models that refine a whole text in steps",
    "retain_iter_history": "is for models that refine a whole text in steps",
    "self_target": "is not for these models, which predict the next token",
    "past_target": "is not for these models, which predict the next token",
}
"""Options that no language model here takes, and why."""


def check_packages(cfg: Any) -> None:
    """UserError for an option in fairseq's configuration whose package is not installed."""
    for group, name, package in NEED:
        if getattr(getattr(cfg, group), name) and find_spec(package) is None:
            raise UserError(
                f"{_flag(name)} needs the package {package}, which is not installed; install it, or leave "
                f"{_flag(name)} out"
            )


def check_supported(settings: Mapping[str, Any]) -> None:
    """UserError for an option among a command's `settings` that cannot work there."""
    task = settings.get("task")
    if task in ("language_modeling", "carried_language_modeling"):
        for name, reason in NOT_FOR_LANGUAGE.items():
            if settings.get(name):
                raise UserError(f"{_flag(name)} {reason}; leave it out")
    if task == "carried_language_modeling" and "output_word_probs" in settings:
        raise UserError(
            "fairseq-eval-lm reads each sample by itself; leave --task out, or evaluate with carried state: "
            "scripts/eval_ppl.sh --carry-state"
        )
    if task == "masked_lm" and "mask_prob" in settings:  # fairseq-validate takes the checkpoint's
        check_masking(settings)
    if (file := settings.get("quantization_config_path")) and not os.path.isfile(file):
        raise UserError(f"no file {file}; name another one with --quantization-config-path")
    if settings.get("optimizer") == "composite":
        raise UserError("--optimizer composite needs groups of settings that no option gives; name another")


def check_masking(settings: Mapping[str, Any]) -> None:
    """UserError for shares of tokens to mask, to replace and to keep outside their limits."""
    if not 0 < settings["mask_prob"] < 1:
        raise UserError(f"--mask-prob is {settings['mask_prob']}; it must lie between 0 and 1")
    shares = settings["random_token_prob"], settings["leave_unmasked_prob"]
    if min(shares) < 0 or sum(shares) > 1:
        raise UserError(
            f"--random-token-prob and --leave-unmasked-prob are {shares[0]} and {shares[1]}; they must be 0 "
            "or more, and together at most 1"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
