"""Each repair is needed: fairseq fails without it and works with it, in a separate process."""

import pickle
import sys
import textwrap

import numpy
import pytest
import torch

from tests.helpers.evil import Evil
from tests.helpers.unpatched import Unpatched

TRAINER = """
import tempfile
import torch
import fairseq.benchmark
from fairseq import options, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

folder = tempfile.TemporaryDirectory()

def trainer(flags):
    words = (
        "--task dummy_lm --dict-size 20 --tokens-per-sample 8 --dataset-size 32 --arch transformer_lm "
        "--decoder-embed-dim 8 --decoder-ffn-embed-dim 8 --decoder-layers 1 --decoder-attention-heads 1 "
        "--dropout 0.0 --batch-size 8 --lr 0.1 --cpu "
    )
    args = options.parse_args_and_arch(options.get_training_parser(), (words + flags).split())
    cfg = convert_namespace_to_omegaconf(args)
    utils.set_torch_seed(1)
    task = tasks.setup_task(cfg.task)
    made = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    [*batches] = made.get_train_iterator(1).next_epoch_itr(shuffle=False)
    return made, batches

def weights(made):
    return torch.cat([x.detach().flatten() for x in made.model.parameters()])

def resumed(made, flags):
    made.consolidate_optimizer()
    made.save_checkpoint(f"{folder.name}/a.pt", {"train_iterator": {"epoch": 1}})
    again, _ = trainer(flags)
    again.load_checkpoint(f"{folder.name}/a.pt")
    return again
"""

BROKEN = {
    "padding_first": TRAINER
    + """
found = []
for padding in ([], [{}]):
    made, batches = trainer("--optimizer sgd")
    made.train_step(batches[:1] + padding)
    found.append(weights(made))
torch.testing.assert_close(*found)
""",
    "restore_master_weights": TRAINER
    + """
flags = "--optimizer adam --bf16"
made, batches = trainer(flags)
made.train_step(batches[:1])
both = made, resumed(made, flags)
for one in both:
    one.train_step(batches[1:2])
assert torch.equal(*map(weights, both))
scaled, _ = trainer("--optimizer adam --fp16 --fp16-no-flatten-grads")
scaled.train_step(batches[:1])
assert resumed(scaled, "--optimizer adam --fp16 --fp16-no-flatten-grads").optimizer.scaler._iter == 1
half = {name: x + 1 for name, x in made.model.state_dict().items()}  # as if averaged
made.model.load_state_dict(half)
again = resumed(made, flags)
assert torch.equal(torch.cat([x.flatten() for x in again.optimizer.fp32_params]), weights(made).float())
""",
    "restore_counts": TRAINER
    + """
flags = "--optimizer adam --fp16 --memory-efficient-fp16"
made, batches = trainer(flags)
made.train_step(batches[:1])
assert resumed(made, flags).optimizer.scaler._iter == 1
""",
    "count_of_averages": TRAINER
    + """
flags = "--optimizer sgd --store-ema --ema-decay 0.5 --ema-update-freq 3"
made, batches = trainer(flags)
for batch in batches[:2]:
    made.train_step([batch])
both = made, resumed(made, flags)
for one in both:
    one.train_step(batches[2:3])
assert torch.equal(*(weights(one.ema) for one in both))
""",
    "load_without_averages": TRAINER
    + """
made, batches = trainer("--optimizer sgd")
made.train_step(batches[:1])
again = resumed(made, "--optimizer sgd --store-ema --ema-decay 0.5")
assert torch.equal(weights(again.ema), weights(made))
again.train_step(batches[1:2])
assert not torch.equal(weights(again.ema), weights(again))
third = resumed(again, "--optimizer sgd --store-ema --ema-fp32 --ema-decay 0.5")
assert torch.equal(weights(third.ema), weights(again.ema))
""",
    "make_up_for_plateau": TRAINER
    + """
from fairseq import checkpoint_utils

flags = (
    "--optimizer sgd --lr-scheduler reduce_lr_on_plateau --lr-patience 1 --lr-shrink 0.5 --save-dir "
    f"{folder.name}"
)
made, _ = trainer(flags)
epochs = made.get_train_iterator(1)
for loss in (1.0, 2.0, 3.0):
    for batch in epochs.next_epoch_itr():
        made.train_step([batch])
    checkpoint_utils.save_checkpoint(made.cfg.checkpoint, made, epochs, loss)
    made.lr_step(epochs.epoch, loss)
again, _ = trainer(flags)
checkpoint_utils.load_checkpoint(again.cfg.checkpoint, again)
assert made.get_lr() == again.get_lr() == 0.05
""",
    "amp": """
        from types import SimpleNamespace
        import torch
        from fairseq.optim import FairseqOptimizer
        from fairseq.optim.amp_optimizer import AMPOptimizer

        class Clipped(FairseqOptimizer):
            def step(self, closure=None, scale=1.0, groups=None):
                torch.nn.utils.clip_grad_value_(self.params, 2.5)
                super().step(closure, scale, groups)

        weight = torch.nn.Parameter(torch.zeros(2))
        inner = Clipped(None)
        inner._optimizer = torch.optim.SGD([weight], lr=1.0)  # whose step is the gradient
        common = SimpleNamespace(
            amp_init_scale=4, amp_scale_window=3, fp16_init_scale=128, min_loss_scale=1e-4
        )
        amp = AMPOptimizer(SimpleNamespace(optimizer=None, common=common), [weight], inner)
        amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=128.0)  # CUDA's is off without a GPU
        for gradient, found, scale in (
            ([2.0, 3.0], [-2.0, -2.5], 128),
            ([2.0, float("inf")], [-2.0, -2.5], 64),
            ([1.0, 1.0], [-3.0, -3.5], 64),
        ):
            amp.zero_grad()
            amp.backward((weight * torch.tensor(gradient)).sum())
            amp.clip_grad_norm(0.0)  # as in each of fairseq's updates
            amp.step()
            assert weight.tolist() == found and amp.scaler.get_scale() == scale, weight
        saved = amp.state_dict()
        resumed = AMPOptimizer(SimpleNamespace(optimizer=None, common=common), [weight], inner)
        resumed._grad_scaler = torch.amp.GradScaler("cpu", growth_interval=2)
        resumed.load_state_dict({key: x for key, x in saved.items() if key != "scaler"})  # of fairseq alone
        assert resumed.scaler.get_scale() == 2.0**16
        resumed.load_state_dict(saved)
        assert resumed.scaler.get_scale() == 64
        resumed.backward(weight.sum())
        resumed.clip_grad_norm(0.0)
        resumed.step()
        assert resumed.scaler.get_scale() == 128  # after two updates without an overflow
        """,
    "read_in_order": """
        import pathlib, tempfile, torch
        from fairseq.data import Dictionary, indexed_dataset
        from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask

        folder = pathlib.Path(tempfile.mkdtemp())
        words = Dictionary()
        for word in range(40):
            words.add_symbol(str(word))
        words.save(str(folder / "dict.txt"))
        builder = indexed_dataset.make_builder(str(folder / "test.bin"), "mmap", vocab_size=len(words))
        builder.add_item(torch.arange(16 * 6) % 30 + 4)
        builder.finalize(str(folder / "test.idx"))
        config = LanguageModelingConfig(
            data=str(folder), tokens_per_sample=16, sample_break_mode="none", dataset_impl=None, seed=1,
            batch_size=1, batch_size_valid=1, use_plasma_view=False, plasma_path="",
        )

        def rows(workers):
            task = LanguageModelingTask.setup_task(config)
            task.load_dataset("test")
            batches = task.eval_lm_dataloader(
                dataset=task.dataset("test"), max_tokens=99, batch_size=1, max_positions=64,
                num_workers=workers, context_window=8,
            )
            return [batch["net_input"]["src_tokens"].tolist() for batch in batches]

        assert rows(2) == rows(0)
        """,
    "reuse_dataloader": """
        from fairseq.data import FairseqDataset
        from fairseq.tasks import FairseqTask

        class Epochs(FairseqDataset):
            epoch = 1
            def __len__(self): return 6
            def __getitem__(self, index): return self.epoch
            def size(self, index): return 1
            num_tokens = size
            def collater(self, samples): return samples
            def set_epoch(self, epoch): self.epoch = epoch

        batches = FairseqTask(None).get_batch_iterator(Epochs(), max_sentences=3, num_workers=1)
        assert [list(batches.next_epoch_itr()) for _ in range(2)] == [[[1, 1, 1]] * 2, [[2, 2, 2]] * 2]
        """,
    "groups_left": """
        from fairseq.data import ListDataset
        from fairseq.data.iterators import EpochBatchIterator, GroupedIterator

        def groups(size, state=None, skip=False):
            batches = EpochBatchIterator(ListDataset(list(range(10))), list, [[i] for i in range(10)])
            if state:
                batches.load_state_dict(state)
            return batches, GroupedIterator(batches.next_epoch_itr(shuffle=False), size, skip)

        for done, size, left in ((5, 4, [4, 1]), (5, 2, [2, 2, 1]), (9, 4, [1]), (0, 4, [4, 4, 2])):
            for skip in (False, True):
                batches, rest = groups(1)
                for _ in range(done):
                    next(rest)
                resumed, rest = groups(size, batches.state_dict(), skip)
                assert [len(group) for group in rest] == [n for n in left if n == size or not skip]
                assert resumed.next_epoch_idx == 2
        """,
    "allow_plain_types_in_checkpoints": """
        import argparse, io, torch
        file = io.BytesIO()
        torch.save({"args": argparse.Namespace(arch="roberta")}, file)
        file.seek(0)
        assert torch.load(file)["args"].arch == "roberta"
        """,
    "restore_numpy_names": """
        import numpy as np
        import torch
        from fairseq.data import ListDataset, TokenBlockDataset
        sentences = ListDataset([torch.tensor([5, 6, 2]), torch.tensor([7, 2])])
        blocks = TokenBlockDataset(sentences, [3, 2], None, pad=1, eos=2, break_mode="eos")
        assert blocks[1].tolist() == [7, 2]
        assert np.zeros(1, np.int).dtype == int
        """,
    "keep_last_batch": """
        import numpy as np
        from fairseq.data import data_utils
        batches = data_utils.batch_by_size(
            np.arange(21), lambda i: 5, np.full(21, 5), max_sentences=8, required_batch_size_multiple=8
        )
        assert [len(batch) for batch in batches] == [8, 8, 5]
        """,
    "keep_place_in_epoch": """
        from fairseq.data import ListDataset
        from fairseq.data.iterators import EpochBatchIterator

        def batches(processes, state=None, size=1):
            samples = ListDataset(list(range(64)))
            order = [list(range(i, i + size)) for i in range(0, 64, size)]
            iterator = EpochBatchIterator(samples, list, order, num_shards=processes)
            if state:
                iterator.load_state_dict(state)
            return iterator, iterator.next_epoch_itr(shuffle=False)

        for before, after in ((1, 4), (4, 1), (2, 2)):
            iterator, rest = batches(before)
            for _ in range(32 // before):
                next(rest)
            assert next(batches(after, iterator.state_dict())[1]) == [32]
            assert next(batches(after, iterator.state_dict(), size=2)[1]) == [32, 33]
        iterator, rest = batches(1)
        for _ in range(63):
            next(rest)
        assert next(batches(1, iterator.state_dict(), size=16)[1]) == list(range(48, 64))
        """,
    "write_durably": """
        import os, re, tempfile, torch
        from fairseq import checkpoint_utils
        from fairseq.file_io import PathManager
        calls, fsync = [], os.fsync
        def record(name):
            original = getattr(os, name)
            def call(*args):
                what = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[-1]
                calls.append((name, re.sub(r"^[.][0-9a-f]{8}[.]", "", os.path.basename(what))))
                return original(*args)
            setattr(os, name, call)
        record("fsync"), record("replace")
        with tempfile.TemporaryDirectory() as folder:
            checkpoint_utils.torch_persistent_save({"model": 1}, f"{folder}/a.pt")
            PathManager.copy(f"{folder}/a.pt", f"{folder}/b.pt", overwrite=True)
            assert torch.load(f"{folder}/b.pt") == {"model": 1}
            assert sorted(os.listdir(folder)) == ["a.pt", "b.pt"]
            name = os.path.basename(folder)
            assert calls == [
                call for file in ("a.pt", "b.pt")
                for call in (("fsync", f"{file}.tmp"), ("replace", file), ("fsync", name))
            ]
        """,
    "overflow_on_the_cpu": """
        import sys
        import fairseq.benchmark
        from fairseq_cli import train
        sys.argv = (
            "fairseq-train --task dummy_lm --dict-size 20 --tokens-per-sample 8 --dataset-size 32 "
            "--batch-size 8 --arch transformer_lm --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 "
            "--decoder-layers 1 --decoder-attention-heads 1 --optimizer adam --lr 0.001 --cpu --fp16 "
            "--fp16-no-flatten-grads "
            f"--fp16-init-scale {2**62} --max-epoch 1 --no-save --disable-validation"
        ).split()
        train.cli_main()
        """,
    "end_gloo_at_exit": """
        import torch.distributed as distributed
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        """,
    "keep_cuda_with_bf16": """
        import sys
        from fairseq import options
        command = "fairseq-train data --task language_modeling --arch transformer_lm --bf16"
        for extra, tpu in (("", False), (" --tpu", True)):
            sys.argv = (command + extra).split()
            args = options.parse_args_and_arch(options.get_training_parser())
            assert args.bf16 and args.tpu == tpu
        """,
    "silence_hydra": """
        import contextlib, io
        from fairseq import options
        from fairseq.dataclass.utils import convert_namespace_to_omegaconf
        words = ["data", "--task", "language_modeling", "--arch", "transformer_lm", "--lr", "0.1"]
        text = io.StringIO()
        with contextlib.redirect_stderr(text):
            convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
        assert "UserWarning" not in text.getvalue(), text.getvalue()
        """,
    "restore_log_format": """
        import io, logging, sys
        root, text = logging.getLogger(), io.StringIO()
        root.handlers.clear()
        logging.basicConfig(level=logging.DEBUG, stream=text)  # as an import of fairseq does
        if patches := sys.modules.get("user_dir.fairseq_patches"):
            patches.apply()
        logging.debug("noise")
        logging.info("figures")
        assert text.getvalue().endswith(" | INFO | root | figures\\n") and "noise" not in text.getvalue()
        """,
    "silence_data_loaders": """
        import warnings
        from torch.utils.data import DataLoader
        with warnings.catch_warnings(record=True) as seen:
            list(DataLoader([1, 2], pin_memory=True))
        assert not [one for one in seen if "pin_memory" in str(one.message)]
        """,
    "show_options_in_help": """
        import contextlib, io
        from fairseq import options
        words = ["data", "--task", "language_modeling", "--arch", "transformer_lm", "--help"]
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            options.parse_args_and_arch(options.get_training_parser(), words)
        assert "--decoder-layers" in text.getvalue() and "--sample-break-mode" in text.getvalue()
        """,
}


@pytest.fixture(scope="module")
def unpatched():
    process = Unpatched()
    yield process
    process.end()


@pytest.mark.parametrize("repair", BROKEN)
def test_repair_is_needed_and_works(unpatched, repair):
    if repair == "restore_numpy_names" and numpy.lib.NumpyVersion(numpy.__version__) < "2.0.0":
        pytest.skip("NumPy 1 still has np.compat")
    code = textwrap.dedent(BROKEN[repair])
    assert unpatched.run(code).returncode != 0
    done = unpatched.run(code, patched=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Python has never forked by default")
def test_data_loaders_fork_their_workers(unpatched):
    """Python 3.14's default would start each of them with all imports."""
    code = "import multiprocessing; assert multiprocessing.get_start_method() == 'fork'"
    assert unpatched.run(code, patched=True).returncode == 0


def test_user_error_ends_the_program_without_traceback(unpatched, root):
    code = f"""
        import sys; sys.path.insert(0, {str(root)!r})
        import user_dir
        from user_dir.errors import UserError
        try:
            raise UserError("the sentence")
        except UserError:
            sys.excepthook(*sys.exc_info())
        """
    said = unpatched.run(textwrap.dedent(code)).stdout
    assert said.strip().splitlines()[-1] == "error: the sentence"
    assert "Traceback" not in said


def test_foreign_pickle_is_refused_and_runs_nothing(tmp_path):
    """The safe loader stays on: a pickle with code in it is not executed."""
    marker, file = tmp_path / "ran", tmp_path / "checkpoint.pt"
    file.write_bytes(pickle.dumps({"model": Evil(marker)}))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file)
    assert not marker.exists()
