"""fairseq's task `carried_language_modeling`: consecutive text, states carried from batch to batch.

Truncated back-propagation, as in fairseq's examples/truncated_bptt: the text is cut into as many streams as a
batch has rows, over all processes; batch i holds the i-th sample of each stream, and starts with the states
that batch i - 1 has left, detached. The rest that does not fill a sample of every stream is left out. States
start again in each epoch and where a run resumes: checkpoints do not contain them.
"""

from collections import UserDict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.data import FairseqDataset, TokenBlockDataset, data_utils
from fairseq.data.iterators import EpochBatchIterator
from fairseq.distributed import utils as distributed
from fairseq.tasks import register_task
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from torch import Tensor, nn

from ..attention.cosformer import CosformerAttention
from ..attention.parts.state import State, state_bytes
from ..attention.performer import PerformerAttention
from ..attention.reformer_hashing import HashedAttention
from ..errors import UserError
from ..models import LinearAttentionLM
from ..modules import LearnedPositions

Sample = dict[str, Any]
# Settings of language_modeling that do not apply to streams of text, at their neutral values.
WITHOUT_USE = {
    "sample_break_mode": "none",
    "add_bos_token": False,
    "shorten_method": "none",
    "self_target": False,
    "future_target": False,
    "past_target": False,
    "output_dictionary_size": -1,
}


class Segments(FairseqDataset):
    """Whole batches: item i is the i-th sample of each of the streams `first` to `first + count - 1`.

    Args:
        blocks: `TokenBlockDataset` of samples with their targets, of `length` tokens but for the last.
        length: tokens of a sample.
        streams: of all processes together.
        first, count: those of this process.

    Raises:
        UserError: when there are fewer samples than streams.
    """

    def __init__(self, blocks: TokenBlockDataset, length: int, streams: int, first: int, count: int) -> None:
        whole = len(blocks) - (int(blocks.sizes[-1]) < length)
        if whole < streams:
            raise UserError(
                f"a text of {whole} samples of {length} tokens cannot fill {streams} streams (--batch-size "
                "times processes); lower --batch-size or --tokens-per-sample"
            )
        self.blocks, self.per_stream = blocks, whole // streams
        self.length, self.all_streams, self.streams = length, streams, range(first, first + count)

    def __len__(self) -> int:
        return self.per_stream

    def __getitem__(self, index: int) -> Sample:
        samples = [self.blocks[stream * self.per_stream + index] for stream in self.streams]
        source, target = (torch.stack([sample[part] for sample in samples]).long() for part in (0, 1))
        return {
            "id": torch.full((len(samples),), index),
            "nsentences": len(samples),
            "ntokens": target.numel(),
            "net_input": {"src_tokens": source, "src_lengths": torch.full((len(samples),), source.shape[1])},
            "target": target,
        }

    def collater(self, samples: list[Sample]) -> Sample:
        """An item is a batch already."""
        (sample,) = samples
        return sample


class StreamIterator(EpochBatchIterator):
    """The batches of `Segments` in the order of the text; a place is valid for one number of streams."""

    def __init__(self, dataset: Segments, **options: Any) -> None:
        batches = [[index] for index in range(len(dataset))]
        super().__init__(dataset, dataset.collater, batches, disable_shuffling=True, **options)

    def state_dict(self) -> dict[str, Any]:
        """fairseq's, with the number of streams."""
        return {**super().state_dict(), "streams": self.dataset.all_streams}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in fairseq; UserError inside an epoch that began with another number of streams."""
        now = self.dataset.all_streams
        begun = state_dict.get("streams", now)
        if begun != now and state_dict["iterations_in_epoch"]:
            raise UserError(
                f"this run has begun its epoch with {begun} streams and would resume with {now}, "
                f"which cut the text elsewhere; let --batch-size times processes be {begun}, or start again"
            )
        super().load_state_dict(state_dict)


class CarriedState:
    """The states that one batch leaves to the next.

    They are not in a `dict`: torch's DDP hands the model a copy of each dict that is not empty when it moves
    the arguments to a GPU, and what the model writes there is lost.
    """

    def __init__(self) -> None:
        self.state: MutableMapping[str, State] = UserDict()
        self.next = self.bytes = 0
        self.update: int | None = None
        self.before: dict[int, MutableMapping[str, State]] = {}

    @contextmanager
    def carry(self, sample: Sample, update: int | None = None) -> Iterator[Sample]:
        """The batch with the states of the one before; empty ones at the start and after a gap.

        `--amp` repeats an `update` after an overflow: its batches get the same states as the first time. A
        step that raises leaves the states of before: fairseq skips a batch that ran out of memory, or
        validates it a second time.

        Args:
            update: the number of updates made so far; None in validation.

        Raises:
            UserError: where the states have grown.
        """
        entered = self._enter(sample, update)
        before = _copied(self.state, with_tensors=update is None)
        try:
            yield entered
        except Exception:
            self.state, self.next = before, self.next - 1
            raise
        self._leave()

    def _enter(self, sample: Sample, update: int | None) -> Sample:
        """The batch with the states that it starts from."""
        index = int(sample["id"][0])
        if update != self.update:
            self.update, self.before = update, {}
        if index != self.next and index in self.before:
            self.state = _copied(self.before[index])
        elif index == 0 or index != self.next:
            self.state, self.bytes = UserDict(), 0
        if update is not None:
            self.before[index] = _copied(self.state)
        self.next = index + 1
        carried = {"incremental_state": self.state, "next_segment": True}
        return {**sample, "net_input": {**sample["net_input"], **carried}}

    def _leave(self) -> None:
        """Cut the gradients off behind the batch; UserError where the states have grown."""
        for entry in self.state.values():
            for name, x in entry.items():
                entry[name] = x.detach() if isinstance(x, Tensor) else x
        found = state_bytes(self.state)
        if self.bytes and found > self.bytes:
            raise UserError(
                "carried state takes mechanisms whose state has a constant size, but the state of this layer "
                "plan grows with the text; choose others, such as diag, norm, elu or lln"
            )
        self.bytes = found


def _copied(state: MutableMapping[str, State], with_tensors: bool = False) -> MutableMapping[str, State]:
    """The states in dictionaries of their own; validation writes to their tensors, training does not."""

    def copied(x: Any) -> Any:
        return x.clone() if with_tensors and isinstance(x, Tensor) else x

    return UserDict({key: {name: copied(x) for name, x in entry.items()} for key, entry in state.items()})


def is_drawn_again(part: nn.Module) -> bool:
    """Whether a mechanism draws its features or hashes again in the course of the training."""
    drawn = isinstance(part, PerformerAttention | HashedAttention)
    return drawn and bool(part.options.redraw) and not getattr(part.options, "paper", False)


def check_model(model: nn.Module, args: Any) -> None:
    """UserError for a model, with the configuration `args`, that cannot read any text in segments."""
    if not isinstance(model, LinearAttentionLM):
        raise UserError(
            f"carried state needs a language model of this project, not fairseq's {type(model).__name__}"
        )
    if isinstance(model.decoder.embed_positions, LearnedPositions):
        raise UserError(
            "carried state reads texts of any length, for which learned positions do not reach; give "
            "--absolute-positions sinusoidal or none"
        )
    if any(is_drawn_again(part) for part in model.modules()):
        raise UserError(
            "carried state keeps sums that --performer-redraw and --reformer-redraw make meaningless; give "
            "--performer-redraw 0, and no --reformer-redraw"
        )
    if args.checkpoint_activations or args.offload_activations:
        raise UserError(
            "carried state keeps states that --checkpoint-activations would compute twice; give "
            "one of the two"
        )


def check_reach(reach: int, streams: Segments) -> None:
    """UserError for streams that are longer than the `reach` of the model's cosFormer attention."""
    longest = streams.per_stream * streams.length
    if longest > reach:
        raise UserError(
            f"--cosformer-length is {reach}, less than the {longest} tokens of a stream; raise it, or give a "
            "larger --batch-size"
        )


def check_settings(args: Any) -> None:
    """UserError for settings of the task that are invalid or would be ignored."""
    if args.batch_size is None:
        raise UserError("carried state needs --batch-size, the number of streams of a process")
    if args.batch_size_valid not in (None, args.batch_size):
        raise UserError("carried state validates as many streams as it trains; leave --batch-size-valid out")
    for name, value in WITHOUT_USE.items():
        if getattr(args, name) not in (None, value):
            raise UserError(f"carried state does not take --{name.replace('_', '-')}; leave it out")


@register_task("carried_language_modeling", dataclass=LanguageModelingConfig)
class CarriedLanguageModelingTask(LanguageModelingTask):
    """Language modelling on streams of consecutive text; `train_lm.sh --carry-state` chooses it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.carried = {True: CarriedState(), False: CarriedState()}  # of training, of validation
        self.reach: int | None = None  # of the model's cosFormer attention

    def build_model(self, args: Any, from_checkpoint: bool = False) -> nn.Module:
        """The model; UserError if it cannot be trained with carried state."""
        model = super().build_model(args, from_checkpoint)
        check_model(model, args)
        lengths = [part.length for part in model.modules() if isinstance(part, CosformerAttention)]
        self.reach = min(lengths, default=None)
        return model

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **unused: Any) -> None:
        """The streams of this process; UserError where the model cannot read them to their ends."""
        rows = data_utils.load_indexed_dataset(
            f"{self.args.data}/{split}", self.dictionary, self.args.dataset_impl, combine=combine
        )
        if rows is None:
            raise FileNotFoundError(f"Dataset not found: {split} ({self.args.data})")
        check_settings(self.args)
        length, count = self.args.tokens_per_sample, self.args.batch_size
        blocks = TokenBlockDataset(
            rows,
            rows.sizes,
            length,
            pad=self.dictionary.pad(),
            eos=self.dictionary.eos(),
            break_mode="none",
            include_targets=True,
        )
        processes, rank = 1, 0
        if torch.distributed.is_initialized():
            processes = distributed.get_data_parallel_world_size()
            rank = distributed.get_data_parallel_rank()
        streams = Segments(blocks, length, count * processes, rank * count, count)
        if self.reach is not None:
            check_reach(self.reach, streams)
        self.datasets[split] = streams

    def get_batch_iterator(
        self,
        dataset: Segments,
        num_workers: int = 0,
        epoch: int = 1,
        data_buffer_size: int = 0,
        max_tokens: int | None = None,
        **unused: Any,
    ) -> StreamIterator:
        """The batches in the order of the text, whatever the process; UserError for a limit on tokens."""
        if max_tokens is not None:
            raise UserError("carried state does not take --max-tokens; leave it out")
        return StreamIterator(dataset, num_workers=num_workers, epoch=epoch, buffer_size=data_buffer_size)

    def train_step(
        self, sample: Sample, model: nn.Module, criterion: Any, optimizer: Any, update_num: int, **others: Any
    ) -> tuple[Tensor, Any, dict[str, Any]]:
        """fairseq's step, with the states of the batch before."""
        with self.carried[True].carry(sample, update_num) as entered:
            return super().train_step(entered, model, criterion, optimizer, update_num, **others)

    def valid_step(self, sample: Sample, *args: Any, **kwargs: Any) -> tuple[Tensor, Any, dict[str, Any]]:
        """fairseq's step, with the states of the batch before."""
        with self.carried[False].carry(sample) as entered:
            return super().valid_step(entered, *args, **kwargs)
