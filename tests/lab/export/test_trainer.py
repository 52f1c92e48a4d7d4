"""Exported models train on with transformers.Trainer as they would with fairseq."""

import json
from pathlib import Path

import pytest
import torch
from fairseq import tasks
from fairseq.data import iterators
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from lab.export.exported import LoadedModel, model_files
from lab.files import ROOT, read_json
from lab.run.plan import parsed
from tests.helpers.once import filled_once
from tests.helpers.prepared import write_files

UPDATES, BATCHES = 20, 2  # batches per update
SETTINGS = {
    "learning_rate": 3e-3,
    "adam_epsilon": 1e-12,  # fairseq's counts for more in the first updates
    "max_grad_norm": 0.5,
    "adam_beta2": 0.98,
    "gradient_accumulation_steps": BATCHES,
}
LM = "--task language_modeling --decoder-embed-dim 16 --decoder-layers 2 --decoder-attention-heads 2"
ENCODER = "--task masked_lm --criterion masked_lm --encoder-embed-dim 16 --encoder-layers 2"
ENCODER += " --encoder-attention-heads 2 --encoder-ffn-embed-dim 32 --max-positions 32"
FIXED = "--lln-alpha 1.1 --lln-beta 0.9"  # the exported model does not adapt them
MODELS = {
    "T1": f"{LM} --arch transnormer_t1",
    "T2": f"{LM} --arch transnormer_t2",
    "LLN": f"{LM} --arch lln_lm {FIXED}",
    "LLN+Diag": f"{LM} --arch lln_diag_lm {FIXED.replace('lln', 'lln-diag')}",
    "linear": f"{LM} --arch linear_transformer_lm",
    "softmax": f"{LM} --arch transnormer_t1 --decoder-attention softmax",
    "RoBERTa T1": f"{ENCODER} --arch roberta_transnormer_t1",
    "RoBERTa softmax": f"{ENCODER} --arch roberta_softmax",
}


def fairseq_losses(flags: str, data: Path, out: Path) -> list[float]:
    """The loss of each update in nats per token; the untrained model and all batches go to `out`."""
    words = [data, "--user-dir", ROOT / "user_dir", "--dropout", 0, "--attention-dropout", 0]
    words += ["--batch-size", 4, "--tokens-per-sample", 32, "--sample-break-mode", "none"]
    words += ["--max-update", UPDATES, "--cpu"]
    words += ["--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", SETTINGS["learning_rate"]]
    words += ["--adam-eps", SETTINGS["adam_epsilon"], "--clip-norm", SETTINGS["max_grad_norm"]]
    words += ["--lr-scheduler", "fixed", "--update-freq", BATCHES, *flags.split()]
    cfg = convert_namespace_to_omegaconf(parsed(list(map(str, words))))
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    torch.manual_seed(1)
    model = task.build_model(cfg.model)
    kind = "MaskedLM" if cfg.task._name == "masked_lm" else "CausalLM"
    source = LoadedModel(model.eval(), cfg.model, task.source_dictionary, kind)
    write_files(out / "model", model_files(source))

    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    losses, step = [], task.train_step

    def noted(*arguments, **options):
        found = step(*arguments, **options)
        losses.append((float(found[2]["loss"]), int(found[1])))
        return found

    task.train_step = noted
    epoch = trainer.get_train_iterator(1, load_dataset=False)
    trainer.begin_epoch(1)
    batches = []
    for samples in iterators.GroupedIterator(epoch.next_epoch_itr(shuffle=True), BATCHES):
        batches += [as_transformers(sample, kind) for sample in samples]
        trainer.train_step(samples)
        if trainer.get_num_updates() == UPDATES:
            break
    torch.save(batches, out / "batches.pt")
    (out / "settings.json").write_text(json.dumps(SETTINGS))
    pairs = [losses[i : i + BATCHES] for i in range(0, len(losses), BATCHES)]
    return [sum(loss for loss, _ in pair) / sum(count for _, count in pair) for pair in pairs]


def as_transformers(sample: dict, kind: str) -> dict[str, torch.Tensor]:
    """A batch with labels, -100 where nothing is predicted; a language model shifts them itself."""
    tokens, labels = sample["net_input"]["src_tokens"], sample["target"]
    if kind == "CausalLM":
        tokens = labels = torch.cat([tokens[:, :1], labels], 1)
    return {"input_ids": tokens, "labels": labels.masked_fill(labels == 1, -100)}


@pytest.fixture(scope="module")
def losses(with_transformers, corpus, tmp_path_factory) -> dict[str, list[list[float]]]:
    """Losses of fairseq and of `transformers.Trainer` by model, from one process."""

    def fill(folder: Path) -> None:
        expected = {name: fairseq_losses(flags, corpus, folder / name) for name, flags in MODELS.items()}
        (folder / "expected.json").write_text(json.dumps(expected))
        with_transformers("train", folder)

    folder = filled_once(tmp_path_factory, "trained on", fill)
    expected = read_json(folder / "expected.json")
    return {name: [expected[name], read_json(folder / name / "losses.json")] for name in MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_fairseq(losses, name):
    expected, found = losses[name]
    assert len(expected) == UPDATES and min(expected[-3:]) < expected[0] - 0.05
    assert found == pytest.approx(expected, abs=1e-4)
