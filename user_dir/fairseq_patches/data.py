"""fairseq's data: batches, the place in an epoch, dictionaries and splits."""

import inspect
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fairseq import checkpoint_utils, tasks
from fairseq.data import Dictionary, data_utils, encoders, indexed_dataset
from fairseq.data.iterators import CountingIterator, EpochBatchIterator, GroupedIterator
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import split_paths
from torch import Tensor

from conventions.content import check_prepared
from conventions.files import check_no_pipe

from ..checks.samples import NotEmpty, check_room_for_start, check_sample_lengths, check_split_files
from ..checks.settings import check_settings
from ..checks.tasks import check_classes
from ..errors import UserError
from ..tokenizers import GPT2, SENTENCEPIECE, tokenizer_in
from .replacing import replaces

TOKENIZER_FILES = {
    "gpt2": "--gpt2-encoder-json and --gpt2-vocab-bpe",
    "sentencepiece": "--sentencepiece-model",
}
BATCHES = inspect.signature(FairseqTask.get_batch_iterator)


def apply() -> None:
    """The wrappers of tasks, iterators, dictionaries and indexed data."""

    @replaces(tasks, "setup_task")
    def setup_task(setup, cfg, **kwargs):
        check_settings(cfg)  # fairseq-hydra-train lacks the parser, which would have done it
        data = getattr(cfg, "data", None)
        for folder in split_paths(data) if data else ():
            check_no_pipe(Path(folder))
        check_classes(cfg)
        with explained_task(cfg):
            task = setup(cfg, **kwargs)
        check_classes(cfg, getattr(task, "label_dictionary", None))
        explain_missing_splits(type(task))
        return task

    MaskedLMTask.args = property(tokenizer_beside)

    @replaces(data_utils, "batch_by_size")
    def batch_by_size(batch, indices, *args, **kwargs):
        if not isinstance(indices, np.ndarray):
            indices = np.fromiter(indices, dtype=np.int64, count=-1)
        refuse_no_sample(indices)
        with explained_length(indices, *args, **kwargs):
            batches = batch(indices, *args, **kwargs)
        return keep_last_batch(batches, indices)

    @replaces(data_utils, "raise_if_valid_subsets_unintentionally_ignored")
    def find_ignored_subsets(find, cfg):
        with explained_subsets():
            find(cfg)

    @replaces(EpochBatchIterator, "state_dict")
    def state_dict(state, self):
        return {**state(self), **place_in_epoch(self)}

    @replaces(EpochBatchIterator, "load_state_dict")
    def load_state_dict(load, self, state):
        load(self, keep_place_in_epoch(self, state))

    @replaces(FairseqTask, "get_batch_iterator")
    def get_batch_iterator(original, self, dataset, *args, **kwargs):
        call = BATCHES.bind(self, dataset, *args, **kwargs)
        call.apply_defaults()
        with explained_longest(call.arguments["max_positions"]):
            return with_new_workers(keep_batches_when_resuming(original, call))

    @replaces(GroupedIterator, "__init__")
    def group(init, self, iterable, chunk_size, skip_remainder_batch=False):
        groups = groups_left(iterable, chunk_size, skip_remainder_batch)
        init(self, iterable, chunk_size)
        self.total = self.n + groups

    @replaces(LanguageModelingTask, "build_model")
    def build_model(build, self, args, from_checkpoint=False):
        model = build(self, args, from_checkpoint)
        if not from_checkpoint:
            check_room_for_start(self.args, model)
        return model

    @replaces(LanguageModelingTask, "eval_lm_dataloader")
    def eval_lm_dataloader(load, self, dataset, *args, max_tokens=36000, max_positions=None, **kwargs):
        context = kwargs.get("context_window", 0)
        if context:
            kwargs["num_workers"] = read_in_order(**kwargs)
        check_sample_lengths(np.asarray(dataset.sizes), context, max_tokens, max_positions)
        batches = load(self, dataset, *args, max_tokens=max_tokens, max_positions=max_positions, **kwargs)
        return NotEmpty(batches)

    @replaces(LanguageModelingTask, "inference_step")
    def inference_step(infer, self, generator, models, sample, prefix_tokens=None, constraints=None):
        prompt = prompt_of(self, sample) if prefix_tokens is None else prefix_tokens
        if isinstance(generator, SequenceGenerator):
            check_prompt(generator, prompt.shape[1], sample["net_input"]["src_tokens"].shape[1])
        refuse_end_inside(prompt, self.source_dictionary.eos())
        return infer(self, generator, models, sample, prefix_tokens, constraints)

    @replaces(EnsembleModel, "forward_decoder")
    def forward_decoder(forward, self, *args, **kwargs):
        scores, attention = forward(self, *args, **kwargs)
        check_scores([scores])
        return scores, attention

    @replaces(SequenceScorer, "generate")
    def score(generate, self, *args, **kwargs):
        rows = generate(self, *args, **kwargs)
        check_scores_of_text(rows)
        return rows

    @replaces(encoders, "build_bpe")
    def build_bpe(build, cfg, *args, **kwargs):
        with explained_tokenizer(cfg):
            return build(cfg, *args, **kwargs)

    @replaces(Dictionary, "add_from_file")
    def add_from_file(add, self, f):
        with explained_dictionary(f):
            add(self, f)

    @replaces(indexed_dataset, "make_dataset")
    def make_dataset(make, path, *args, **kwargs):
        check_split_files(path)
        return make(path, *args, **kwargs)

    @replaces(FairseqTask, "build_generator")
    def build_generator(build, self, models, args, seq_gen_cls=None, extra_gen_cls_kwargs=None, **kwargs):
        check_sampling(args, self.target_dictionary)
        extra = extra_gen_cls_kwargs or {}
        if getattr(args, "lm_path", None) and "lm_model" not in extra:
            extra = {**extra, **second_language_model(self, models, args)}
        return build(self, models, args, seq_gen_cls, extra, **kwargs)


@contextmanager
def explained_task(cfg: Any) -> Iterator[None]:
    """Without `--task`, fairseq takes translation, whose data are of two languages."""
    try:
        yield
    except Exception as error:
        if "Could not infer language pair" not in str(error):
            raise
        raise UserError(
            "--task translation, fairseq's default, needs data of two languages, which are missing; give "
            "the task of the data, such as --task language_modeling"
        ) from None


def tokenizer_beside(task: MaskedLMTask) -> Namespace:
    """The tokeniser in the data folder, which says which tokens begin a word; UserError if there is none.

    With `--mask-whole-words`, fairseq (every version) asks for an attribute that its task no longer has.
    """
    folder = Path(split_paths(task.cfg.data)[0])
    if found := tokenizer_in(folder):
        return Namespace(**found)
    raise UserError(
        f"--mask-whole-words needs the tokeniser of the data, but {folder} has neither {SENTENCEPIECE} nor "
        f"{' and '.join(GPT2)}; prepare them with data-prep/roberta.sh"
    )


def explain_missing_splits(kind: type[FairseqTask]) -> None:
    """A split that the data folder lacks ends fairseq in a traceback."""

    @replaces(kind, "load_dataset")
    def load_dataset(load, self, split, *args, **kwargs):
        data = data_of(self)
        for folder in split_paths(data) if data else ():
            check_prepared(Path(folder), split)
        try:
            return load(self, split, *args, **kwargs)
        except FileNotFoundError as error:
            if "Dataset not found" not in str(error):
                raise
            raise _missing_split(Path(data), split, setting(self, "dataset_impl")) from None


def _missing_split(folder: Path, split: str, form: str | None) -> UserError:
    """`form` is `--dataset-impl`, as which fairseq has found no split of this name."""
    there = sorted({path.name.partition(".")[0] for path in folder.glob("*.idx")})
    if form and split in there:
        return UserError(
            f"the split {split!r} of {folder} cannot be read with --dataset-impl {form}; leave it out, and "
            "fairseq finds the format itself"
        )
    return UserError(
        f"{folder} has no split {split!r}, but {', '.join(there) or 'none'}; check --train-subset, "
        "--valid-subset and --gen-subset"
    )


def data_of(task: FairseqTask) -> str | None:
    """The data folders of a task."""
    return setting(task, "data")


def setting(task: FairseqTask, name: str) -> Any:
    """A setting of a task, which are its `cfg`, or of language_modeling its `args`; None if it has none."""
    return getattr(getattr(task, "cfg", None) or getattr(task, "args", None), name, None)


def read_in_order(num_workers: int = 1, num_shards: int = 1, **unused: Any) -> int:
    """The workers of a data loader that reads each sample with the tokens before it: one at most.

    fairseq (every version) takes these tokens from the last batch of the same worker, which is the wrong one
    where several workers share the batches. UserError where several processes share them.
    """
    if num_shards > 1:
        raise UserError(
            "--context-window takes the tokens before a sample from the batch before, which another of the "
            f"{num_shards} processes or shards reads; take one, or leave out --context-window"
        )
    return min(num_workers, 1)


def refuse_no_sample(indices: np.ndarray) -> None:
    """Where every sample was filtered out, fairseq ends in a traceback."""
    if not len(indices):
        raise UserError(
            "no sample is left to make batches of: all are longer than the model reads; raise "
            "--tokens-per-sample and the model's positions, or cut the samples"
        )


@contextmanager
def explained_subsets() -> Iterator[None]:
    """A split such as valid1 that --valid-subset does not name ends fairseq in a traceback."""
    try:
        yield
    except ValueError as error:
        raise UserError(
            f"the data have further splits for validation: {str(error).partition(' will be')[0]}; add "
            "--combine-val to validate on all, or --ignore-unused-valid-subsets"
        ) from None


@contextmanager
def explained_longest(max_positions: Any) -> Iterator[None]:
    """Validation on samples that are longer than the model reads ends fairseq in the advice to skip them."""
    try:
        yield
    except Exception as error:
        found = re.match(r"Size of sample #\d+ is invalid \(=(.*)\) since", str(error))
        if found is None:
            raise
        raise UserError(
            f"a sample of {found[1]} tokens is longer than the {max_positions} positions of the model; lower "
            "--tokens-per-sample, or cut the samples"
        ) from None


@contextmanager
def explained_length(
    indices: np.ndarray,
    num_tokens_fn: Any,
    num_tokens_vec: Any = None,
    max_tokens: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> Iterator[None]:
    """A sample that is longer than a batch may be ends fairseq in a traceback."""
    try:
        yield
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        longest = max(int(num_tokens_fn(index)) for index in indices)
        raise UserError(
            f"a batch of {max_tokens} tokens (--max-tokens, in validation --max-tokens-valid) is too small "
            f"for the {longest} tokens of the longest sample; raise it, or lower --tokens-per-sample"
        ) from None


def refuse_end_inside(prompt: Tensor, end: int) -> None:
    """UserError for a prompt that holds the `end` of a line: fairseq returns it as the whole text."""
    if prompt.eq(end).any():
        raise UserError(
            "the prompt holds </s>, the end of a line, where the text would end; leave it out "
            "(fairseq-generate: --sample-break-mode eos)"
        )


def prompt_of(task: LanguageModelingTask, sample: Mapping[str, Any]) -> Tensor:
    """The tokens that fairseq has a text begin with: those of the sample, without the one before the text."""
    tokens, words = sample["net_input"]["src_tokens"], task.source_dictionary
    start = words.bos() if getattr(task.args, "add_bos_token", False) else words.eos()
    return tokens[:, 1:] if tokens.nelement() and tokens[:, 0].eq(start).all() else tokens


def check_prompt(generator: SequenceGenerator, tokens: int, source: int) -> None:
    """UserError if a prompt leaves nothing to write: fairseq cuts it off and returns it as the continuation.

    Args:
        tokens: of the longest prompt of a batch.
        source: the length of its sources, which `--max-len-a` multiplies.
    """
    longest = int(generator.max_len_a * source + generator.max_len_b)
    if generator.match_source_len or tokens < min(longest, generator.max_len - 1):
        return
    if tokens >= generator.max_len - 1:
        raise UserError(
            f"a prompt of {tokens} tokens leaves nothing to write to a model of {generator.max_len} "
            "positions; shorten it, such as with --prefix-size of fairseq-generate"
        )
    raise UserError(
        f"a prompt of {tokens} tokens leaves nothing to write: --max-len-b counts its tokens, too, and "
        f"allows {longest} in all; raise it, or add --max-len-a 1"
    )


def check_sampling(args: Any, dictionary: Dictionary) -> None:
    """UserError for a `--sampling-topk` of more words than the dictionary has."""
    most = getattr(args, "sampling_topk", -1)
    if getattr(args, "sampling", False) and most > 0 and len(dictionary) < most:
        raise UserError(
            f"--sampling-topk is {most}, more than the {len(dictionary)} words of the dictionary; lower it, "
            "or leave it out"
        )


def second_language_model(task: FairseqTask, models: Sequence[Any], args: Any) -> dict[str, Any]:
    """The model of `--lm-path` for a generator: fairseq-interactive and the hub ignore the option."""
    folder = {"data": split_paths(data_of(task))[0]}
    (model,), _ = checkpoint_utils.load_model_ensemble([args.lm_path], arg_overrides=folder)
    like = next(models[0].parameters())
    model.prepare_for_inference_(Namespace(generation=args))
    return {"lm_model": model.to(device=like.device, dtype=like.dtype), "lm_weight": args.lm_weight}


def check_scores(scores: Iterable[Tensor]) -> None:
    """UserError for log-probabilities that are NaN, which beam search and fairseq-eval-lm take for others."""
    if any(x.isnan().any() for x in scores):
        raise UserError(
            "the model gives probabilities that are NaN: its training has diverged, or its precision is too "
            "low; name an earlier checkpoint, or leave out --fp16"
        )


def check_scores_of_text(rows: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """UserError for log-probabilities that are not finite.

    fairseq-eval-lm ends as if all were well: with a loss of NaN, or without the tokens of the others.
    """
    scores = [x["positional_scores"] for row in rows for x in row]
    check_scores(scores)
    if any(x.isinf().any() for x in scores):
        raise UserError(
            "the model gives a token of the text the probability 0, and the perplexity is infinite: the "
            "precision is too low, or every probability of an ensemble is; leave out --fp16, or evaluate the "
            "checkpoints one by one"
        )


@contextmanager
def explained_tokenizer(cfg: Any) -> Iterator[None]:
    """A damaged or missing file of `--bpe`, or a download without a network, ends fairseq in a traceback."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        name = getattr(cfg, "bpe", None) or getattr(cfg, "_name", None)
        if name not in TOKENIZER_FILES:
            raise
        raise UserError(
            f"--bpe {name} cannot be loaded ({str(error).strip()}); name its files with "
            f"{TOKENIZER_FILES[name]}"
        ) from None


def keep_last_batch(batches: Any, indices: np.ndarray) -> Any:
    """fairseq 0.12.3 leaves out the last batch unless its size is a multiple of 8 (a default few know).

    Evaluation then silently misses its longest samples, and a set of fewer than 8 samples is empty.
    """
    rest = indices[sum(len(batch) for batch in batches) :]
    return [*batches, rest] if len(rest) else batches


def place_in_epoch(iterator: EpochBatchIterator) -> dict[str, int]:
    """State for `keep_place_in_epoch` besides fairseq's own."""
    return {"processes": iterator.num_shards, "batches": len(iterator.frozen_batches)}


def keep_place_in_epoch(iterator: EpochBatchIterator, state: Mapping[str, Any]) -> dict[str, Any]:
    """fairseq counts the batches of one process, so other processes or batches resume at the wrong place.

    Every version of it: half as many processes then repeat batches, twice as many skip them or fail; so do
    smaller and larger batches.
    """
    done = state.get("iterations_in_epoch", 0) * state.get("processes", iterator.num_shards)
    if before := state.get("batches"):
        done = done * len(iterator.frozen_batches) // before
    return {**state, "iterations_in_epoch": done // iterator.num_shards}


def with_new_workers(iterator: EpochBatchIterator) -> EpochBatchIterator:
    """fairseq (0.12.3) keeps the workers of the first epoch, and with them its masks and its order."""
    iterator.reuse_dataloader = False
    return iterator


def groups_left(batches: CountingIterator, size: int, skip_rest: bool) -> int:
    """The updates left in an epoch; with `skip_rest`, batches that are too few for another are left out.

    fairseq (every version) counts them as if all before had been of this size. A run resumed with another
    `--update-freq` then ends the epoch too late, in a traceback, or too early, and repeats it.
    """
    done = getattr(batches, "n", 0)
    groups, rest = divmod(len(batches) - done, size)
    if skip_rest:
        batches.take(done + groups * size)
        return groups
    return groups + (rest > 0)


def keep_batches_when_resuming(original: Any, call: inspect.BoundArguments) -> EpochBatchIterator:
    """fairseq batches the samples once, in an order drawn with the number of the epoch it starts in.

    Every version of it: a run resumed after its first epoch gets other batches than it would have had, and
    in the rest of that epoch sees some samples twice and others not at all.
    """
    given = call.arguments
    task, dataset, epoch = given["self"], given["dataset"], given["epoch"]
    new_each_epoch = given["disable_iterator_cache"] or given["update_epoch_batch_itr"]
    if new_each_epoch or not task.can_reuse_epoch_itr(dataset) or dataset in task.dataset_to_epoch_iter:
        return original(*call.args, **call.kwargs)
    given["epoch"] = 1
    iterator = original(*call.args, **call.kwargs)
    dataset.set_epoch(epoch)
    iterator.epoch = max(epoch, 1)
    return iterator


@contextmanager
def explained_dictionary(file: Any) -> Iterator[None]:
    """fairseq says in a traceback that a dictionary is missing or not text."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"no dictionary {file}; name a folder that fairseq-preprocess has filled") from None
    except Exception as error:
        if not isinstance(file, str):  # fairseq calls this again with the open file
            raise
        reason = str(error).partition("\n")[0]
        raise UserError(f"{file} is not a fairseq dictionary ({reason}); prepare the data again") from None
