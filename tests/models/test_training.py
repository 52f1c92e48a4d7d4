"""The real fairseq commands: training, resuming, two processes, evaluation, generation."""

import math
import re
import signal
import sys
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from tests.helpers import forked
from tests.helpers.cases import exhaustive
from tests.helpers.golden import load, relative, state
from tests.helpers.lm import dictionary
from tests.helpers.logs import losses
from tests.models.conftest import assert_same_weights, signalled, train_in_two_processes

UNTIED = "--no-share-decoder-input-output-embed"
CARRIED = ("--task", "carried_language_modeling", "--criterion", "chunked_cross_entropy", "--batch-size", "4")


def test_training_learns_and_logs(trained):
    values = list(losses(trained[1]).values())
    assert len(values) == 12 and values[-1] < values[0]


def test_resumes_after_kill_with_the_same_losses(commands, trained, tmp_path):
    """`kill -9` in mid-epoch, after seven updates; the last checkpoint is of update 4."""
    options = ("--max-update", "12", "--save-interval-updates", "4", "--dropout", "0.1")
    command = commands.train(tmp_path, *options)
    killed = forked.run(signalled(command, signal.SIGKILL, update=8))
    assert killed.returncode == -9 and (tmp_path / "checkpoint_last.pt").exists()
    resumed = losses(commands.run(*command))
    expected = losses(trained[1])
    assert min(resumed) == 5 and max(resumed) == 12
    assert resumed == {update: expected[update] for update in resumed}


@pytest.mark.parametrize("precision", [(), exhaustive(("--bf16",))], ids=["float32", "bf16"])
def test_the_fused_adam_continues_a_run(precision, commands, tmp_path):
    """And gives the losses that fairseq's would have given."""
    options = ("--dropout", "0", "--disable-validation", "--max-update", "8", *precision)
    whole = commands.run(*commands.train(tmp_path / "adam", "--save-interval-updates", "4", *options))
    start = ("--restore-file", str(tmp_path / "adam" / "checkpoint_1_4.pt"))
    fused = commands.train(tmp_path / "fused", *options, "--optimizer", "adamw_fused", *start)
    resumed = losses(commands.run(*fused))
    assert set(resumed) == {5, 6, 7, 8}
    expected = losses(whole)
    for update, loss in resumed.items():
        assert loss == pytest.approx(expected[update], abs=5e-3 if precision else 2e-3)


def test_chunked_loss_trains_the_same_model(commands, trained, tmp_path):
    options = ("--max-update", "12", "--dropout", "0.1", "--no-save", "--chunk-rows", "100")
    output = commands.run(*commands.train(tmp_path, *options, "--criterion", "chunked_cross_entropy"))
    assert losses(output) == pytest.approx(losses(trained[1]), abs=2e-3)


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        exhaustive(("--criterion", "cross_entropy", UNTIED), ("--update-freq", "2")),
        (("--criterion", "chunked_cross_entropy", UNTIED), ("--update-freq", "2")),
        pytest.param(CARRIED, ("--batch-size", "8"), marks=pytest.mark.slow),
    ],
    ids=["cross_entropy", "chunked_cross_entropy", "carried"],
)
def test_two_processes_equal_one_with_twice_the_rows(options, alone, commands, tmp_path):
    """Accumulated, or of consecutive text in a batch with all streams."""
    options = (*options, "--max-update", "6", "--dropout", "0", "--disable-validation")
    commands.run(*commands.train(tmp_path / "one", *options, *alone))
    train_in_two_processes(commands.train(tmp_path / "two", *options))
    assert_same_weights(tmp_path)


@pytest.mark.slow
def test_a_stopped_run_on_consecutive_text_resumes_at_its_place(commands, tmp_path):
    def train(updates):
        output = commands.run(*commands.train(tmp_path, *CARRIED, "--max-update", str(updates)))
        assert all(map(math.isfinite, losses(output).values()))
        return list(losses(output))

    assert train(4) == [1, 2, 3, 4]
    assert train(7) == [5, 6, 7]
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == 7


def test_new_process_evaluates_to_the_same_perplexity(commands, trained):
    folder, log = trained
    # The last validation of the run is that of the last checkpoint.
    valid = re.findall(r'"valid_loss": "([0-9.]+)"', log)[-1]
    output = commands.run(
        sys.executable,
        "-m",
        "fairseq_cli.eval_lm",
        str(commands.data),
        "--user-dir",
        str(commands.root / "user_dir"),
        "--path",
        str(folder / "checkpoint_last.pt"),
        "--gen-subset",
        "valid",
        "--tokens-per-sample",
        "32",
        "--sample-break-mode",
        "none",
        "--batch-size",
        "8",
        "--cpu",
    )
    loss = re.search(r"Loss \(base 2\): ([0-9.]+)", output).group(1)
    assert float(loss) == pytest.approx(float(valid), abs=2e-3)


@pytest.mark.parametrize("beam", [1, 4])
def test_generation_gives_what_the_full_forward_gives(trained, corpus, beam):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(trained[0] / "checkpoint_last.pt")], arg_overrides={"data": str(corpus)}
    )
    model = models[0].eval()
    generator = SequenceGenerator(models, task.target_dictionary, beam_size=beam, max_len_b=90, min_len=70)
    prefix = torch.randint(4, 50, (3, 9))
    sample = {"net_input": {"src_tokens": prefix, "src_lengths": torch.tensor([9, 9, 9])}}
    bos = task.source_dictionary.eos()
    with torch.no_grad():
        for row, hypotheses in enumerate(
            generator.generate(models, sample, prefix_tokens=prefix, bos_token=bos)
        ):
            for hypothesis in hypotheses:
                tokens = hypothesis["tokens"]
                assert tokens[:9].tolist() == prefix[row].tolist()
                inputs = torch.cat([torch.tensor([bos]), tokens[:-1]])[None]
                logits = model(inputs)[0]
                scores = logits.log_softmax(-1)[0].gather(1, tokens[:, None])[:, 0]
                torch.testing.assert_close(hypothesis["positional_scores"], scores, rtol=1e-3, atol=1e-3)


def test_generate_command_with_prefix(commands, trained):
    output = commands.run(
        sys.executable,
        "-m",
        "fairseq_cli.generate",
        str(commands.data),
        "--user-dir",
        str(commands.root / "user_dir"),
        "--task",
        "language_modeling",
        "--path",
        str(trained[0] / "checkpoint_last.pt"),
        "--gen-subset",
        "test",
        "--sample-break-mode",
        "eos",
        "--prefix-size",
        "3",
        "--beam",
        "2",
        "--batch-size",
        "4",
        "--max-len-b",
        "20",
        "--cpu",
    )
    sources = dict(re.findall(r"^S-(\d+)\t(.*)$", output, re.M))
    hypotheses = re.findall(r"^H-(\d+)\t[-0-9.e]+\t(.*)$", output, re.M)
    assert len(hypotheses) == 30
    for number, text in hypotheses:
        assert text.split()[:3] == sources[number].split()[:3]


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("transnormer_t1", ("--bf16",)),
        ("transnormer_t2", ("--update-freq", "2", "--no-share-decoder-input-output-embed")),
        (
            "linear_transformer_lm",
            (
                "--criterion",
                "adaptive_loss",
                "--adaptive-softmax-cutoff",
                "20,40",
                "--ddp-backend",
                "legacy_ddp",
                "--decoder-layerdrop",
                "0.3",
                "--checkpoint-activations",
                "--decoder-attention",
                "elu+diag,softmax",
            ),
        ),
    ],
    ids=["bf16", "untied", "adaptive"],
)
def test_options_train(commands, tmp_path, arch, options):
    command = commands.train(tmp_path, *options, "--max-update", "3", "--no-save", arch=arch)
    output = commands.run(*command)
    assert len(losses(output)) == 3
    assert all(map(math.isfinite, losses(output).values()))


def test_checkpoint_of_the_authors_fork_loads_as_a_file(golden_dir, corpus, tmp_path):
    """A whole checkpoint file as the fork writes it: `args` as a Namespace with the fork's options."""
    arrays = load(golden_dir, "transnormer_t1_lm.npz")
    dictionary(50).save(str(tmp_path / "dict.txt"))
    args = Namespace(
        arch="transnormer_t1",
        task="language_modeling",
        data=str(tmp_path),
        tokens_per_sample=150,
        sample_break_mode="none",
        criterion="cross_entropy",
        optimizer="adam",
        lr=[1e-3],
        lr_scheduler="fixed",
        decoder_layers=4,
        decoder_embed_dim=32,
        decoder_attention_heads=4,
        decoder_attention_types=[2, 2, 1, 1],
        linear_act_fun="elu",
        local_act_fun="relu",
        decoder_chunk_size=64,
        glu_act="swish",
        share_decoder_input_output_embed=True,
        dropout=0.0,
        max_target_positions=150,
        user_dir=None,
        adam_betas="(0.9, 0.98)",
        adam_eps=1e-8,
    )
    file = tmp_path / "checkpoint.pt"
    history = [{"criterion_name": "CrossEntropyCriterion", "best_loss": 1.0}]
    checkpoint = {"args": args, "cfg": None, "model": state(arrays), "extra_state": {}}
    torch.save({**checkpoint, "optimizer_history": history}, file)
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(file)])
    logits = models[0].eval()(torch.tensor(arrays["L150/tokens"]))[0]
    assert relative(logits, arrays["L150/silu/logits"]) < 1e-5
    args.decoder_chunk_size = 32  # has no counterpart; docs/reproducing.md names the override
    torch.save({**checkpoint, "optimizer_history": history}, file)
    for overrides, size in (({}, 64), ({"diag_block_size": 32}, 32)):
        models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(file)], overrides)
        assert models[0].decoder.layers[0].self_attn.block_size == size
