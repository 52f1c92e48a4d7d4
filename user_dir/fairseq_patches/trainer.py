"""fairseq's trainer: checks at its start and at each update, and where it saves and loads."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from fairseq import models
from fairseq.distributed.utils import is_master
from fairseq.optim.lr_scheduler import FairseqLRScheduler
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from fairseq.utils import split_paths
from torch import Tensor

from ..checks.checkpoints import configuration, difference, read_safely
from ..checks.dictionaries import check_dictionary, check_labels, label_fingerprint, note_dictionary
from ..checks.locks import lock_save_dir
from ..checks.options import fill_in_options
from ..checks.same_settings import CHECKED, allowed_changes, check_same_run, check_same_settings
from ..checks.schedules import check_schedule
from ..checks.settings import check_settings
from ..checks.tasks import check_model_name, check_model_of_task
from ..checks.training import LAST, check_pairs, check_training, note_long_warmup
from ..checks.training_data import keep_data_record
from ..errors import UserError
from . import stopping, train_loop
from .checkpoints import plain_score
from .data import setting
from .diverged import check_loss, explained_divergence
from .replacing import replaces
from .run_state import count_of_averages, load_without_averages, share_statistics

OTHER = re.compile(r"(Criterion|Optimizer) does not match; .*\. (\w+) vs (\w+)$")


def apply() -> None:
    """The wrappers of the trainer's methods."""

    @replaces(Trainer, "__init__")
    def make_trainer(init, self, cfg, task, model, *args, **kwargs):
        for group in (cfg.dataset, cfg.optimization):  # fairseq-hydra-train lacks the parser
            check_settings(group)
        check_schedule(cfg)
        fill_in_options(cfg.model, getattr(cfg.model, "_name", None))
        check_training(cfg)
        check_pairs(cfg, task)
        note_long_warmup(cfg)
        keep_others_out(cfg)
        note_dictionary(cfg, task)
        note_data(cfg, task, model)
        init(self, cfg, task, model, *args, **kwargs)
        stopping.listen(self)
        train_loop.apply()

    @replaces(Trainer, "train_step")
    def train_step(step, self, samples, *args, **kwargs):
        with explained_divergence(self), overflow_on_the_cpu(self):
            stats = step(self, padding_first(samples), *args, **kwargs)
        check_loss(self, stats)
        return stats

    @replaces(models, "build_model")
    def build_model(build, cfg, task, *args, **kwargs):
        name = getattr(cfg, "_name", None) or getattr(cfg, "arch", None)
        check_model_name(name)
        check_model_of_task(name, setting(task, "_name"))
        return build(cfg, task, *args, **kwargs)

    @replaces(FairseqTask, "train_step")
    def step_of_task(step, *args, ignore_grad=False, **kwargs):
        results = step(*args, ignore_grad=ignore_grad, **kwargs)
        return nothing_counted(*results) if ignore_grad else results

    @replaces(Trainer, "_aggregate_logging_outputs")
    def aggregate(original, self, logging_outputs, *stats, ignore=False):
        outputs, totals = original(self, logging_outputs, *stats, *stopping.requests(), ignore=ignore)
        return outputs, stopping.agree(self, totals)

    @replaces(Trainer, "begin_valid_epoch")
    def begin_valid_epoch(begin, self, epoch):
        share_statistics(self.get_model())
        begin(self, epoch)

    @replaces(Trainer, "lr_step")
    def lr_step(step, self, epoch, val_loss=None):
        return step(self, epoch, plain_score(val_loss))

    @replaces(Trainer, "save_checkpoint")
    def save_checkpoint(save, self, filename, extra_state):
        if is_unwanted_crash(self, filename):
            return None
        counts = {"patience": train_loop.patience_state(), **count_of_averages(self)}
        return save(self, filename, {**extra_state, **counts, **label_fingerprint(self.task)})

    @replaces(Trainer, "load_checkpoint")
    def load_checkpoint(load, self, filename, reset_optimizer=False, *args, **kwargs):
        check_start(self, filename, reset_optimizer)
        with explained_misfit(filename):
            return load_without_averages(load, self, filename, reset_optimizer, *args, **kwargs)


def keep_others_out(cfg: Any) -> None:
    """fairseq-train lets two runs write into one --save-dir; the first process of a run takes its lock.

    The folder is missing if a trainer is made without fairseq's command.
    """
    save_dir = cfg.checkpoint.save_dir
    if is_master(cfg.distributed_training) and not cfg.checkpoint.no_save and os.path.isdir(save_dir):
        lock_save_dir(save_dir)
        note_training_data(cfg, Path(save_dir))


def note_training_data(cfg: Any, save_dir: Path) -> None:
    """fairseq resumes on whatever data the folder holds by then, also on part of an epoch of others."""
    data = getattr(cfg.task, "data", None)
    if not data:  # of a task that draws its own
        return
    folders = [Path(folder) for folder in split_paths(data)]
    resumes = (save_dir / LAST).exists() and not cfg.checkpoint.reset_dataloader
    keep_data_record(folders, save_dir, resumes, "data" in allowed_changes(cfg.model))


def note_data(cfg: Any, task: Any, model: Any) -> None:
    """Task and model note settings from their data in the configuration that checkpoints hold."""
    for part, settings in ((task, cfg.task), (model, cfg.model)):
        if hasattr(part, "note_data"):
            part.note_data(settings)


def padding_first(samples: Sequence[Any]) -> list[Any]:
    """The batches of an update, the empty ones that fill up a process's share of an epoch before the others.

    fairseq (every version) takes all batches of the process for empty where the last is, and divides the
    gradients by too few tokens.
    """
    return sorted(samples, key=bool)


def nothing_counted(
    loss: Tensor, sample_size: Any, log: Mapping[str, Any]
) -> tuple[Tensor, Any, dict[str, Any]]:
    """The sums of an empty batch: fairseq evaluates another one in its place and would count its tokens."""
    return loss, sample_size * 0, {key: value * 0 for key, value in log.items()}


@contextlib.contextmanager
def overflow_on_the_cpu(trainer: Trainer) -> Iterator[None]:
    """Where an fp16 update overflows, fairseq moves a number to the GPU, which ends training without one."""
    if trainer.cuda:
        yield
        return
    move = torch.Tensor.cuda
    torch.Tensor.cuda = lambda tensor, *unused, **options: tensor
    try:
        yield
    finally:
        torch.Tensor.cuda = move


def is_unwanted_crash(trainer: Trainer, filename: str) -> bool:
    """Whether it is the crash.pt that fairseq writes even with `--no-save`."""
    return os.path.basename(filename) == "crash.pt" and trainer.cfg.checkpoint.no_save


def check_start(trainer: Trainer, filename: str, reset_optimizer: bool) -> None:
    """fairseq starts at update 1 beside a folder of the checkpoint's name, and takes any dictionary.

    It also takes the weights and the optimizer of another model of the same shapes. That is so for the run's
    own checkpoint, `--restore-file` and `--finetune-from-model`, which all come here. A run without a saved
    state of the optimizer would start at update 1.
    """
    if not os.path.exists(filename):
        return
    state = read_safely(Path(filename))
    saved = configuration(filename, state)
    resumes = not reset_optimizer and state.get("last_optimizer_state") is not None
    own = Path(filename).absolute().parent == Path(trainer.cfg.checkpoint.save_dir).absolute()
    if own and not (resumes or reset_optimizer):
        raise UserError(
            f"{filename} lacks the state of the optimizer (--no-save-optimizer-state), so training cannot "
            "resume; start from its weights with --finetune-from-model and another --save-dir"
        )
    check_dictionary(saved["model"], trainer.task.source_dictionary)
    if resumes:
        check_labels(filename, state.get("extra_state"), trainer.task)
    if own and resumes:
        groups = state["cfg"] if state.get("cfg") else dict.fromkeys(CHECKED, state["args"])
        check_same_run(os.path.dirname(filename), groups, trainer.cfg)
    else:
        check_same_settings(filename, saved, trainer.cfg, resumes)


@contextlib.contextmanager
def explained_misfit(filename: str) -> Iterator[None]:
    """fairseq says in fourteen lines that a model does not fit, none of which names the difference."""
    try:
        yield
    except Exception as error:
        if match := OTHER.match(str(error)):
            raise UserError(
                f"{filename} was trained with another --{match[1].lower()}, {match[2]}, not {match[3]}; give "
                "that one, or start from its weights with --finetune-from-model and another --save-dir"
            ) from None
        if isinstance(error, KeyError) and is_of_schedule(error):
            raise UserError(
                f"{filename} was trained with another --lr-scheduler, whose state does not suit this one; "
                "give that one, or add --reset-lr-scheduler"
            ) from None
        if "Cannot load model parameters" not in str(error):
            raise
        raise UserError(
            f"the checkpoint {filename} does not fit the model: {difference(error.__context__)}; give the "
            "settings it was trained with, or another --save-dir"
        ) from error


def is_of_schedule(error: Exception) -> bool:
    """Whether a schedule of the learning rate raised it."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return isinstance(frame.f_locals.get("self"), FairseqLRScheduler)
