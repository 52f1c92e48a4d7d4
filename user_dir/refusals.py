"""What fairseq accepts without a word, or breaks on in a traceback, refused in one sentence instead."""

import argparse
import ast
import math
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from omegaconf import DictConfig, ListConfig

from .diverged import stop_diverged_runs
from .errors import UserError
from .replacing import replaces
from .schedules import check_schedule
from .training_checks import check_before_training, check_task_of_model

# Options of fairseq's that are numbers from 1 up, where they are given.
COUNTS = (
    *("batch_size", "batch_size_valid", "max_tokens", "tokens_per_sample", "max_target_positions"),
    *("max_positions", "required_batch_size_multiple", "log_interval"),
)
LIMITS = {  # what other numbers must lie between
    "seed": (0, 2**32 - 1),
    "mask_prob": (0, 1),
    **dict.fromkeys(("max_update", "num_workers", "warmup_updates", "stop_time_hours"), (0, math.inf)),
}
LISTS_OF_COUNTS = ("update_freq",)


def check_settings(cfg: Any) -> None:
    """Refuse numbers no run can have: NaN or infinity, a batch or a sample of nothing.

    Args:
        cfg: a namespace, or a group of fairseq's configuration.

    Raises:
        UserError: naming the option.
    """
    settings = dict(cfg.items_ex(resolve=False) if isinstance(cfg, DictConfig) else vars(cfg))
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        parts = value if isinstance(value, list | tuple | ListConfig) else [value]
        numbers = [x for x in parts if isinstance(x, int | float) and not isinstance(x, bool)]
        if not all(math.isfinite(x) for x in numbers):
            raise UserError(f"{option} is {value}; it must be a finite number")
        if name in COUNTS + LISTS_OF_COUNTS and any(x < 1 for x in numbers):
            raise UserError(f"{option} is {value}; it must be a whole number from 1 up")
        low, high = LIMITS.get(name, (-math.inf, math.inf))
        if not all(low <= x <= high for x in numbers):
            most = "" if math.isinf(high) else f" and at most {high}"
            raise UserError(f"{option} is {value}; it must be at least {low}{most}")
        if name == "lr" and any(x < 0 for x in numbers):
            raise UserError(f"--lr is {value}, which leads away from what is learnt; give numbers above 0")
    if isinstance(settings.get("adam_betas"), str):
        check_betas(settings["adam_betas"])
    if "buffer_size" in settings:
        check_input(str(settings.get("input", "-")))
    if isinstance(settings.get("model_overrides"), str):
        read_overrides(settings["model_overrides"])
    if settings.get("ddp_backend") == "fully_sharded":
        check_sharding(settings)


def check_betas(text: str) -> None:
    """UserError unless Adam's `--adam-betas` are two numbers."""
    try:
        first, second = ast.literal_eval(text)
        good = 0 <= first < 1 and 0 <= second < 1
    except (ValueError, SyntaxError, TypeError):
        good = False
    if not good:
        raise UserError(f"--adam-betas is {text!r}; give two numbers below 1, such as '(0.9, 0.98)'")


def check_input(name: str) -> None:
    """UserError if fairseq-interactive cannot read its `--input`."""
    if name != "-" and not os.path.exists(name):
        raise UserError(f"no file {name} to read; name another one with --input, or - for what you type")
    if os.path.isdir(name):
        raise UserError(f"--input is {name}, a folder; name a file of text, or - for what you type")


def check_sharding(settings: Mapping[str, Any]) -> None:
    """Refuse sharded parameters where they cannot be had; fairseq's are those of fairscale.

    Raises:
        UserError: saying what is missing, or which option excludes them.
    """
    if find_spec("fairscale") is None:
        raise UserError(
            "--ddp-backend fully_sharded needs the package fairscale, which is not installed; install "
            "fairscale==0.4.13, or choose another --ddp-backend"
        )
    if settings.get("cpu"):
        raise UserError("--ddp-backend fully_sharded needs GPUs; choose another one for the CPU")
    if settings.get("bf16") or settings.get("memory_efficient_bf16"):
        raise UserError("--ddp-backend fully_sharded excludes --bf16 in fairseq; take --fp16, or neither")


def read_overrides(text: str) -> dict[str, Any]:
    """What `--model-overrides` says, a dictionary written as in Python; UserError for any other text.

    fairseq-eval-lm and fairseq-validate evaluate the text as code, so this comes first.
    """
    try:
        overrides = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        overrides = None
    if not isinstance(overrides, dict) or not all(isinstance(key, str) for key in overrides):
        raise UserError(
            f"--model-overrides is {text!r}; write a dictionary such as \"{{'diag_block_size': 32}}\""
        )
    return overrides


def refuse_impossible_options() -> None:
    """fairseq takes any number, and answers a mistyped option with four screens of usage."""
    from fairseq import options

    @replaces(options, "parse_args_and_arch")
    def parse_args_and_arch(parse, parser, *args, **kwargs):
        if "error" not in vars(parser):
            parser.error = _usage_error(parser)
        try:
            parsed = parse(parser, *args, **kwargs)
        except ValueError as error:
            if not str(error).startswith("Cannot combine --fp16 and --tpu"):
                raise
            raise UserError("--fp16 and --bf16 (or --tpu) exclude each other; give one of them") from None
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        check_settings(namespace)
        check_task_of_model(namespace)
        return parsed


def _usage_error(parser: argparse.ArgumentParser) -> Callable[[str], None]:
    def error(message: str) -> None:
        # The types of fairseq's lists are lambdas, whose name says nothing.
        message = message.replace("invalid <lambda> value:", "expected numbers such as 1 or 1,2, not")
        raise UserError(f"{message}; see {parser.prog} --help")

    return error


def refuse_to_leave_samples_out() -> None:
    """fairseq-eval-lm leaves out samples longer than the model and calls the perplexity of no token 1."""
    from fairseq.tasks.language_modeling import LanguageModelingTask

    @replaces(LanguageModelingTask, "eval_lm_dataloader")
    def eval_lm_dataloader(original, self, dataset, *args, max_tokens=36000, max_positions=None, **kwargs):
        context = kwargs.get("context_window", 0)
        check_sample_lengths(np.asarray(dataset.sizes), context, max_tokens, max_positions)
        iterator = original(
            self, dataset, *args, max_tokens=max_tokens, max_positions=max_positions, **kwargs
        )
        return _NotEmpty(iterator)


def check_sample_lengths(
    sizes: np.ndarray, context: int, max_tokens: int | None, max_positions: int | None
) -> None:
    """UserError where samples of these `sizes` in tokens, `context` ones before each, would be left out."""
    if not len(sizes):
        raise UserError("the split holds no sample; prepare the data again")
    longest = int(sizes.max()) + context
    if max_positions is not None and longest > max_positions:
        count = int((sizes + context > max_positions).sum())
        raise UserError(
            f"{count:,} of {len(sizes):,} samples are longer than the {max_positions} positions of the model "
            f"(the longest has {longest} tokens) and would be left out; give --sample-break-mode none and "
            f"--tokens-per-sample {max_positions} or less"
        )
    if max_tokens is not None and int(sizes.max()) > max_tokens:
        raise UserError(
            f"--max-tokens is {max_tokens}, less than the {int(sizes.max())} tokens of the longest sample; "
            "raise it, or lower --tokens-per-sample"
        )


class _NotEmpty:
    """An iterator over batches that ends in a UserError if no batch held a sample."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.n = getattr(batches, "n", 0)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        found = False
        for batch in self.batches:
            found = found or "net_input" in batch
            yield batch
        if not found:
            raise UserError("not one token was evaluated; are there more shards (--num-shards) than batches?")


def check_what_hydra_composed() -> None:
    """fairseq-hydra-train has no parser: its settings are looked at where task and trainer are made."""
    from fairseq import tasks
    from fairseq.trainer import Trainer

    @replaces(tasks, "setup_task")
    def setup_task(setup, cfg, **kwargs):
        check_settings(cfg)
        return setup(cfg, **kwargs)

    @replaces(Trainer, "__init__")
    def make_trainer(init, self, cfg, *args, **kwargs):
        for group in (cfg.dataset, cfg.optimization):
            check_settings(group)
        check_schedule(cfg)
        init(self, cfg, *args, **kwargs)


REFUSALS = (
    refuse_impossible_options,
    refuse_to_leave_samples_out,
    check_what_hydra_composed,
    check_before_training,
    stop_diverged_runs,
)


def apply() -> None:
    """All refusals; applying them twice changes nothing."""
    for refusal in REFUSALS:
        refusal()
