"""An exported model trains on with transformers.Trainer as it would with fairseq."""

import json
from pathlib import Path

import pytest
import torch
from fairseq import tasks
from fairseq.data import iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from pipeline.export.export_hf import export
from pipeline.files import ROOT, read_json
from pipeline.training.train import parsed

UPDATES, BATCHES = 20, 2  # batches per update
SETTINGS = {
    "learning_rate": 3e-3,
    "adam_epsilon": 1e-12,  # fairseq's counts for more in the first updates
    "max_grad_norm": 0.5,
    "adam_beta2": 0.98,
    "gradient_accumulation_steps": BATCHES,
}


def fairseq_losses(checkpoint: Path, data: Path) -> tuple[list[float], list[torch.Tensor]]:
    """The loss of each update in nats per token, and the tokens of all batches."""
    words = [data, "--user-dir", ROOT / "user_dir", "--arch", "transnormer_t1", "--task", "language_modeling"]
    words += ["--decoder-embed-dim", 16, "--decoder-layers", 2, "--decoder-attention-heads", 2]
    words += ["--dropout", 0.0, "--tokens-per-sample", 32, "--sample-break-mode", "none", "--batch-size", 4]
    words += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", SETTINGS["learning_rate"]]
    words += ["--adam-eps", SETTINGS["adam_epsilon"], "--clip-norm", SETTINGS["max_grad_norm"]]
    words += ["--lr-scheduler", "fixed", "--update-freq", BATCHES, "--cpu", "--max-update", UPDATES]
    cfg = convert_namespace_to_omegaconf(parsed(list(map(str, words))))
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    trainer.load_checkpoint(str(checkpoint), reset_optimizer=True, reset_lr_scheduler=True, reset_meters=True)
    losses, step = [], task.train_step

    def noted(*arguments, **options):
        found = step(*arguments, **options)
        losses.append((float(found[2]["loss"]), found[1]))
        return found

    task.train_step = noted
    epoch = trainer.get_train_iterator(1, load_dataset=False)
    trainer.begin_epoch(1)
    rows = []
    for samples in iterators.GroupedIterator(epoch.next_epoch_itr(shuffle=True), BATCHES):
        rows += [torch.cat([one["net_input"]["src_tokens"][:, :1], one["target"]], 1) for one in samples]
        trainer.train_step(samples)
        if trainer.get_num_updates() == UPDATES:
            break
    pairs = [losses[i : i + BATCHES] for i in range(0, len(losses), BATCHES)]
    return [sum(loss for loss, _ in pair) / sum(count for _, count in pair) for pair in pairs], rows


@pytest.mark.slow
def test_losses_are_those_of_fairseq(with_transformers, trained, corpus, tmp_path):
    checkpoint = trained / "checkpoint_last.pt"
    expected, batches = fairseq_losses(checkpoint, corpus)
    assert len(expected) == UPDATES and expected[-1] < expected[0] - 0.05
    export(checkpoint, tmp_path / "model", None)
    torch.save(batches, tmp_path / "batches.pt")
    (tmp_path / "settings.json").write_text(json.dumps(SETTINGS))
    with_transformers("trained_on.py", tmp_path)
    print("EXP", expected)
    assert read_json(tmp_path / "losses.json") == pytest.approx(expected, abs=1e-4)
