"""Invalid numbers, texts and files, refused by the name of their option."""

import ast
import codecs
import io
import logging
import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, ListConfig

from ..errors import UserError
from ..tokenizers import tokenizer_in
from .checkpoints import check_one_model
from .unsupported import check_supported

logger = logging.getLogger(__name__)

# Options of fairseq's that must be 1 or more, if they are given.
COUNTS = (
    *("batch_size", "batch_size_valid", "max_tokens", "tokens_per_sample", "max_target_positions"),
    *("max_positions", "required_batch_size_multiple", "log_interval", "distributed_world_size"),
    *("save_interval", "validate_interval", "beam", "nbest"),
)
FROM_ZERO = (
    *("max_update", "num_workers", "warmup_updates", "stop_time_hours", "clip_norm", "save_interval_updates"),
    *("validate_interval_updates", "context_window", "prefix_size", "buffer_size", "no_repeat_ngram_size"),
    *("min_len", "max_len_a"),
)
LIMITS = {  # what other numbers must lie between
    "seed": (0, 2**32 - 1),
    "mask_prob": (0, 1),
    "label_smoothing": (0, 1),
    "sampling_topp": (-math.inf, 1),  # below 0, as by default, it is off
    **dict.fromkeys(FROM_ZERO, (0, math.inf)),
}
REFUSED = "refused"  # the name of this module's handler of bytes that are not text
# How a log begins: with fairseq's configuration, or the time of a line.
LOG = re.compile(rb"\{'_name': None, 'common'|\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
PLANS = ("decoder_attention", "encoder_attention")
LISTS_OF_COUNTS = ("update_freq",)
OFF = {"sampling_topk": -1, "sampling_topp": -1.0}
"""The value that switches an option off; 0 is refused, since it silently does the same."""


def check_settings(cfg: Any) -> None:
    """Refuse invalid numbers: NaN or infinity, an empty batch or sample.

    Args:
        cfg: a namespace, or a group of fairseq's configuration.

    Raises:
        UserError: naming the option.
    """
    settings = dict(cfg.items_ex(resolve=False) if isinstance(cfg, DictConfig) else vars(cfg))
    for name, value in settings.items():
        _check_numbers(name, value)
        if name in PLANS and value == "":
            raise UserError(f"--{name.replace('_', '-')} is empty; name an attention, or leave it out")
    check_data(settings.get("data"))
    check_log_file(settings.get("log_file"))
    check_supported(settings)
    check_generation(settings)
    if "model_overrides" in settings:
        check_one_process(settings)
        check_precision_of_evaluation(settings)
    if isinstance(settings.get("adam_betas"), str):
        check_betas(settings["adam_betas"])
    pieces = settings.get("sentencepiece_model") if settings.get("bpe") == "sentencepiece" else None
    if pieces and not os.path.isfile(pieces):
        raise UserError(f"no file {pieces}; name another one with --sentencepiece-model")
    if "buffer_size" in settings:
        check_input(str(settings.get("input", "-")))
        note_missing_tokenizer(settings)
    if isinstance(settings.get("model_overrides"), str):
        read_overrides(settings["model_overrides"])
    if settings.get("ddp_backend") == "fully_sharded":
        check_sharding(settings)


def _check_numbers(name: str, value: Any) -> None:
    option = f"--{name.replace('_', '-')}"
    parts = value if isinstance(value, list | tuple | ListConfig) else [value]
    numbers = [x for x in parts if isinstance(x, int | float) and not isinstance(x, bool)]
    if not all(math.isfinite(x) for x in numbers):
        raise UserError(f"{option} is {value}; it must be a finite number")
    if name in COUNTS + LISTS_OF_COUNTS and any(x < 1 for x in numbers):
        raise UserError(f"{option} is {value}; it must be a whole number from 1 up")
    low, high = LIMITS.get(name, (-math.inf, math.inf))
    if not all(low <= x <= high for x in numbers):
        bounds = [f"at least {low}"] * math.isfinite(low) + [f"at most {high}"] * math.isfinite(high)
        raise UserError(f"{option} is {value}; it must be {' and '.join(bounds)}")
    if name == "lr" and any(x < 0 for x in numbers):
        raise UserError(f"--lr is {value}, but must be positive")
    if name == "lr" and numbers and not any(numbers):
        raise UserError("--lr is 0, so nothing would be learned; give a number above 0")


def check_data(data: Any) -> None:
    """UserError where the DATA of a command is a file; fairseq takes folders, several with colons between."""
    if not isinstance(data, str):
        return
    for path in data.split(os.pathsep):
        if os.path.isfile(path):
            raise UserError(
                f"DATA is {path}, a file; name a folder that fairseq-preprocess or a script of data-prep/ "
                "has written"
            )


def check_log_file(name: str | None) -> None:
    """UserError if `--log-file`, to which a command appends, is not a log."""
    if not name:
        return
    path, other = Path(name), "name another file with --log-file"
    if not path.parent.is_dir():
        raise UserError(f"--log-file {name}: its folder is missing; make it, or name another file")
    if path.is_char_device() or not path.exists():  # such as /dev/null
        return
    if not path.is_file():
        raise UserError(f"--log-file {name} is not a file; {other}")
    with path.open("rb") as file:
        start = file.read(100)
    if start and not LOG.match(start):
        raise UserError(f"--log-file {name} exists and is not a log of fairseq's; {other}")


def check_generation(settings: Mapping[str, Any]) -> None:
    """UserError if a command lacks a model to evaluate or a place to write, or would generate nothing."""
    if "model_overrides" in settings and settings.get("path", "") is None:
        raise UserError("--path is missing; name the checkpoint to evaluate")
    lengths = settings.get("max_len_a"), settings.get("max_len_b")
    if None not in lengths and not lengths[0] and lengths[1] < 1:
        raise UserError(f"--max-len-b is {lengths[1]}; it must be a whole number from 1 up")
    if None not in lengths and not lengths[0] and settings.get("min_len", 1) > lengths[1]:
        raise UserError(f"--min-len is {settings['min_len']}, more than --max-len-b, {lengths[1]}")
    for name, value in OFF.items():
        if settings.get(name) == 0:
            raise UserError(
                f"--{name.replace('_', '-')} is 0; give a number above 0, or {value} to sample from all words"
            )
    if (nbest := settings.get("nbest")) is not None and nbest > settings.get("beam", nbest):
        raise UserError(
            f"--nbest is {nbest}, more than --beam, {settings['beam']}, of which it shows the best"
        )
    if {"shard_id", "num_shards"} <= settings.keys() and settings["shard_id"] >= settings["num_shards"]:
        raise UserError(
            f"--shard-id is {settings['shard_id']}, but --num-shards is {settings['num_shards']}; the first "
            "shard is 0"
        )
    if "beam" in settings and settings.get("num_shards", 1) > 1:
        raise UserError("--num-shards is for fairseq-eval-lm, and does nothing here; leave it out")
    check_one_model("--lm-path", settings.get("lm_path"))
    window, length = settings.get("context_window"), settings.get("tokens_per_sample")
    if window and length and window >= length:  # fairseq takes it off each sample
        raise UserError(
            f"--context-window is {window}; it must be less than --tokens-per-sample, {length}, such as "
            f"{length // 2}"
        )
    if settings.get("results_path"):
        check_writable("--results-path", settings["results_path"])


def check_one_process(settings: Mapping[str, Any]) -> None:
    """UserError if an evaluation would start several processes: fairseq does not put their results together.

    Processes that are started from outside may share the data of fairseq-eval-lm or fairseq-generate.
    """
    world, shares = settings.get("distributed_world_size", 1), {"beam", "output_word_probs"} & settings.keys()
    if world > 1 and not (shares and settings.get("distributed_no_spawn")):
        raise UserError(
            f"--distributed-world-size is {world}, but each process would evaluate its own part of the data; "
            "leave it out, and one process evaluates all"
        )


def check_precision_of_evaluation(settings: Mapping[str, Any]) -> None:
    """UserError for a precision that fairseq's evaluations ignore."""
    for name in ("memory_efficient_bf16", "bf16", "amp"):
        if settings.get(name):
            raise UserError(
                f"--{name.replace('_', '-')} is for training; leave it out, for float32, or give --fp16"
            )


def check_writable(option: str, folder: str) -> None:
    """UserError if the folder that an option names is not writable; it need not exist."""
    path = Path(folder).absolute()
    there = next(x for x in (path, *path.parents) if x.exists())
    if not there.is_dir():
        raise UserError(f"{option} {folder}: {there} is a file; name a folder")
    try:
        with tempfile.TemporaryDirectory(dir=there):  # os.access says that root may write into /proc
            pass
    except OSError:
        raise UserError(f"{option} {folder} is not writable; name another folder") from None


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
    """UserError if fairseq-interactive cannot read its `--input`; for `-`, once bytes are not text."""
    if name == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):  # a notebook replaces it
            sys.stdin.reconfigure(encoding="utf-8", errors=REFUSED)
        return
    if not os.path.exists(name):
        raise UserError(f"no file {name} to read; name another one with --input, or - to type the text")
    if os.path.isdir(name):
        raise UserError(f"--input is {name}, a folder; name a text file, or - to type the text")
    if os.path.isfile(name) and os.path.getsize(name) == 0:
        raise UserError(f"--input is {name}, which is empty; name a text file, or - to type the text")
    if os.path.isfile(name):
        with open(name, encoding="utf-8") as file:
            try:
                for _ in file:
                    pass
            except UnicodeDecodeError as error:
                raise UserError(
                    f"--input is {name}, which is not UTF-8 text ({error.reason}); convert it, or name "
                    "another file"
                ) from None


def refuse_bytes(error: UnicodeError) -> NoReturn:
    """The handler of `codecs` for bytes that are not text."""
    raise UserError(f"the input is not UTF-8 text ({error.reason}); convert it") from None


codecs.register_error(REFUSED, refuse_bytes)


def note_missing_tokenizer(settings: Mapping[str, Any]) -> None:
    """Warn where fairseq-interactive would read text as words, but the data are of a tokeniser's pieces."""
    if settings.get("bpe") or not isinstance(settings.get("data"), str):
        return
    if found := tokenizer_in(Path(settings["data"].split(os.pathsep)[0])):
        flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in found.items())
        logger.warning(
            "the data are of pieces of words, but the input is read as whole words, of which most are <unk>; "
            "add %s",
            flags,
        )


def check_sharding(settings: Mapping[str, Any]) -> None:
    """Refuse sharded parameters where fairscale, which fairseq needs for them, is missing.

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
    """The dictionary of `--model-overrides`, written as in Python; UserError for any other text.

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
