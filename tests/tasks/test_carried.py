"""Training on consecutive text: the streams, the states between batches, invalid settings."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import TokenBlockDataset
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from torch.distributed.utils import _to_kwargs

from lab.data.preparation import write_rows
from tests.helpers.lm import build_lm, dictionary
from user_dir.errors import UserError
from user_dir.tasks.carried import CarriedLanguageModelingTask, Segments, check_model

LENGTH, ROWS = 16, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A text of 20 samples of 16 tokens and a few tokens more, in rows of any length."""
    place = tmp_path_factory.mktemp("text")
    words = dictionary(40)
    words.save(str(place / "dict.txt"))
    text = torch.randint(4, 40, (20 * LENGTH + 5,), generator=torch.Generator().manual_seed(0))
    for split in ("train", "valid"):
        write_rows(place / split, text.split(23), len(words))
    return place


@pytest.fixture
def config(folder):
    return LanguageModelingConfig(
        data=str(folder),
        tokens_per_sample=LENGTH,
        batch_size=ROWS,
        batch_size_valid=None,
        dataset_impl=None,
    )


@pytest.fixture
def task(config):
    result = CarriedLanguageModelingTask.setup_task(config)
    result.load_dataset("train")
    return result


class Optimizer:
    """What a training step asks of fairseq's."""

    def backward(self, loss):
        loss.backward()


def test_batches_are_consecutive_in_every_stream(task):
    batches = list(task.get_batch_iterator(task.dataset("train")).next_epoch_itr())
    assert len(batches) == 10 and [int(batch["id"][0]) for batch in batches] == list(range(10))
    source, target = (
        torch.cat([batch[part] if part == "target" else batch["net_input"][part] for batch in batches], 1)
        for part in ("src_tokens", "target")
    )
    assert target.shape == (ROWS, 10 * LENGTH)
    assert torch.equal(source[:, 1:], target[:, :-1]) and source[1, 0] == target[0, -1]


def test_processes_have_streams_of_their_own(task):
    blocks = task.dataset("train").blocks
    halves = [Segments(blocks, LENGTH, 4, first, 2) for first in (0, 2)]
    seen = torch.cat([half[i]["target"].flatten() for half in halves for i in range(len(half))])
    assert len(halves[0]) == 5 and len(seen) == 20 * LENGTH
    assert torch.equal(seen.sort().values, torch.cat([blocks[i][1] for i in range(20)]).long().sort().values)
    with pytest.raises(UserError, match="20 samples of 16 tokens cannot fill 21 streams"):
        Segments(blocks, LENGTH, 21, 0, 21)


@pytest.mark.parametrize("rank", range(3))
def test_a_process_loads_the_streams_behind_those_of_the_ones_before(task, monkeypatch, rank):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr("user_dir.tasks.carried.distributed.get_data_parallel_world_size", lambda: 3)
    monkeypatch.setattr("user_dir.tasks.carried.distributed.get_data_parallel_rank", lambda: rank)
    task.load_dataset("train")
    loaded = task.dataset("train")
    assert loaded.streams == range(rank * ROWS, (rank + 1) * ROWS) and loaded.all_streams == 3 * ROWS


@pytest.mark.parametrize(("sizes", "batches"), [((4, 4, 4, 4), 2), ((4, 4, 4, 4, 3), 2), ((4, 4, 4, 3), 1)])
def test_a_last_sample_counts_if_it_is_whole(sizes, batches):
    words = dictionary(40)
    blocks = TokenBlockDataset([torch.arange(4, 4 + sum(sizes))], [sum(sizes)], 4, words.pad(), words.eos())
    assert blocks.sizes.tolist() == list(sizes)
    assert len(Segments(blocks, 4, 2, 0, 2)) == batches


def test_an_epoch_resumes_with_as_many_streams_alone(task, config):
    iterator = task.get_batch_iterator(task.dataset("train"))
    batches = iterator.next_epoch_itr()
    for _ in range(3):
        next(batches)
    place = iterator.state_dict()
    again = task.get_batch_iterator(task.dataset("train"))
    again.load_state_dict(place)
    assert int(next(again.next_epoch_itr())["id"][0]) == 3
    other = CarriedLanguageModelingTask.setup_task(replace(config, batch_size=4))
    other.load_dataset("train")
    fewer = other.get_batch_iterator(other.dataset("train"))
    with pytest.raises(UserError, match="begun its epoch with 2 streams and would resume with 4"):
        fewer.load_state_dict(place)
    for _ in batches:
        pass
    fewer.load_state_dict(iterator.state_dict())
    assert int(next(fewer.next_epoch_itr())["id"][0]) == 0


@pytest.mark.parametrize("plan", ["diag,norm", "elu", "lln_diag", "flash"])
def test_states_are_carried_and_detached(task, plan):
    """Losses of consecutive batches equal one forward pass; no gradient reaches the previous batch."""
    sizes = {"diag_block_size": 6, "lln_diag_block_size": 6, "flash_chunk_size": 6, "flash_key_dim": 6}
    model = build_lm("linear_transformer_lm", decoder_attention=plan, **sizes)
    criterion = CrossEntropyCriterion(task, False)
    batches = [task.dataset("train")[i] for i in range(3)]
    source = torch.cat([batch["net_input"]["src_tokens"] for batch in batches], 1)
    target = torch.cat([batch["target"] for batch in batches], 1)
    with torch.no_grad():
        scores = model(source)[0].log_softmax(-1).gather(2, target[..., None])[..., 0]
    expected = [-float(part.sum()) for part in scores.split(LENGTH, 1)]
    found = [float(task.valid_step(batch, model, criterion)[0]) for batch in batches]
    assert found == pytest.approx(expected, rel=1e-5)
    for batch in batches:  # a graph that is used twice would raise
        task.train_step(batch, model, criterion, Optimizer(), 0)
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def moved_by_ddp(model):
    """Hand the model its arguments as torch's DDP does on a GPU."""
    forward = model.forward

    def moved(*args, **kwargs):
        [args], [kwargs] = _to_kwargs(args, kwargs, torch.device("cpu"), False)
        return forward(*args, **kwargs)

    model.forward = moved
    return model


def test_states_are_carried_through_ddp(task):
    criterion = CrossEntropyCriterion(task, False)

    def losses(model):
        batches = [task.dataset("train")[i] for i in range(4)]
        found = [task.valid_step(batch, model, criterion)[0] for batch in batches]
        found += [task.train_step(batch, model, criterion, Optimizer(), 0)[0] for batch in batches]
        return [loss.item() for loss in found]

    model = build_lm("transnormer_t1")
    assert losses(moved_by_ddp(copy.deepcopy(model))) == losses(model)


def test_states_start_again_at_the_start_and_after_a_gap(task):
    model, criterion = build_lm("transnormer_t1"), CrossEntropyCriterion(task, False)
    batches = task.dataset("train")

    def loss(index):
        return float(task.valid_step(batches[index], model, criterion)[0])

    first, second = loss(0), loss(1)
    assert (loss(0), loss(1)) == (first, second)
    alone = loss(3)  # after a gap
    assert loss(1) != pytest.approx(second, rel=1e-6)
    assert loss(3) == alone


def test_a_validation_leaves_the_states_of_training_alone(task):
    model, criterion = build_lm("transnormer_t1"), CrossEntropyCriterion(task, False)
    batches = task.dataset("train")

    def loss(index):
        return task.train_step(batches[index], model, criterion, Optimizer(), index)[0].item()

    wanted = [loss(0), loss(1)]
    first = loss(0)
    for index in range(2):
        task.valid_step(batches[index], model, criterion)
    assert [first, loss(1)] == wanted


@pytest.mark.parametrize("size", [1, 2])
def test_an_update_that_is_made_again_has_the_states_it_had(size, task):
    """`--amp` gives the batches of an update again if their gradients are infinite."""
    model, criterion = build_lm("transnormer_t1"), CrossEntropyCriterion(task, False)
    batches = task.dataset("train")

    def losses(update):
        rest = (model, criterion, Optimizer(), update)
        indices = range(update * size, (update + 1) * size)
        return [task.train_step(batches[index], *rest)[0].item() for index in indices]

    wanted = [losses(update) for update in range(3)]
    for update in range(3):
        for _ in range(3):
            assert losses(update) == wanted[update]


class OutOfMemory(CrossEntropyCriterion):
    """Runs out of memory once, behind the model's forward pass."""

    failed = False

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if not self.failed:
            self.failed = True
            raise RuntimeError("CUDA out of memory")
        return loss


@pytest.mark.parametrize("plan", ["diag,norm", "elu", "lln_diag", "flash"])
def test_a_batch_is_validated_again_with_the_states_it_had(plan, task):
    """fairseq tries a batch of validation that runs out of memory a second time."""
    sizes = {"diag_block_size": 6, "lln_diag_block_size": 6, "flash_chunk_size": 6, "flash_key_dim": 6}
    model = build_lm("linear_transformer_lm", decoder_attention=plan, **sizes)
    batches, usual, failing = (
        task.dataset("train"),
        CrossEntropyCriterion(task, False),
        OutOfMemory(task, False),
    )
    wanted = [task.valid_step(batches[index], model, usual)[0].item() for index in range(4)]
    for index in range(2):
        task.valid_step(batches[index], model, usual)
    with pytest.raises(RuntimeError, match="out of memory"):
        task.valid_step(batches[2], model, failing)
    assert [task.valid_step(batches[index], model, usual)[0].item() for index in (2, 3)] == wanted[2:]


def test_training_goes_on_after_a_batch_that_ran_out_of_memory(task):
    """fairseq leaves the batch out; the next one starts with empty states, which hold no graph."""
    model, batches = build_lm("transnormer_t1"), task.dataset("train")
    usual, failing = CrossEntropyCriterion(task, False), OutOfMemory(task, False)

    def loss(index, update, criterion=usual):
        return task.train_step(batches[index], model, criterion, Optimizer(), update)[0].item()

    alone = loss(2, 0)  # after a gap
    loss(0, 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        loss(1, 2, failing)
    carried = [x for entry in task.carried[True].state.values() for x in entry.values()]
    assert not any(x.requires_grad for x in carried if isinstance(x, torch.Tensor))
    assert loss(2, 2) == alone


def test_growing_states_are_refused(task):
    model = build_lm("linear_transformer_lm", decoder_attention="softmax")
    criterion = CrossEntropyCriterion(task, False)
    with pytest.raises(UserError, match="the state of this layer plan grows with the text"):
        for index in range(4):
            task.valid_step(task.dataset("train")[index], model, criterion)


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("transnormer_t1", {"absolute_positions": "learned"}, "learned positions do not reach"),
        ("transnormer_t1", {"checkpoint_activations": True}, "give one of the two"),
        ("performer_lm", {}, "--performer-redraw 0"),
        ("transformer_lm", {}, "not fairseq's TransformerLanguageModel"),
    ],
)
def test_models_that_cannot(arch, options, message):
    flags = {"checkpoint_activations": False, "offload_activations": False, **options}
    with pytest.raises(UserError, match=message):
        check_model(build_lm(arch, **options), SimpleNamespace(**flags))


@pytest.mark.parametrize(("length", "refused"), [(160, False), (159, True)])
def test_a_stream_beyond_the_reach_of_cosformer(length, refused, config, monkeypatch):
    """A stream has 10 samples of 16 tokens."""
    model = build_lm("cosformer_lm", cosformer_length=length)
    monkeypatch.setattr(LanguageModelingTask, "build_model", lambda *unused: model)
    task = CarriedLanguageModelingTask.setup_task(config)
    task.build_model(SimpleNamespace(checkpoint_activations=False, offload_activations=False))
    said = "--cosformer-length is 159, less than the 160 tokens of a stream"
    with pytest.raises(UserError, match=said) if refused else nullcontext():
        task.load_dataset("train")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"batch_size": None}, "needs --batch-size"),
        ({"batch_size_valid": 1}, "leave --batch-size-valid out"),
        ({"add_bos_token": True}, "does not take --add-bos-token"),
        ({"sample_break_mode": "eos"}, "does not take --sample-break-mode"),
    ],
)
def test_settings_that_cannot_be(setting, said, config):
    task = CarriedLanguageModelingTask.setup_task(replace(config, **setting))
    with pytest.raises(UserError, match=said):
        task.load_dataset("train")


def test_a_limit_on_tokens_that_would_be_ignored(task):
    with pytest.raises(UserError, match="does not take --max-tokens"):
        task.get_batch_iterator(task.dataset("train"), max_tokens=64)
