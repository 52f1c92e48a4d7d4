"""Each repair is needed: fairseq fails without it and works with it, in a process of its own."""

import pickle
import sys
import textwrap

import numpy
import pytest
import torch

from tests.helpers.evil import Evil
from tests.helpers.unpatched import Unpatched

BROKEN = {
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
        """,
    "write_durably": """
        import os, tempfile, torch
        from fairseq import checkpoint_utils
        from fairseq.file_io import PathManager
        calls, fsync = [], os.fsync
        def record(name):
            original = getattr(os, name)
            def call(*args):
                what = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[-1]
                calls.append((name, os.path.basename(what)))
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
