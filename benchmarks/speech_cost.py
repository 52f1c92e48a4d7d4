#!/usr/bin/env python3
"""Cost of training the speech encoder of Katharopoulos et al. 2020 (4.3) with softmax, Reformer and 1+elu.

9 layers of width 192, 6 heads, CTC over 42 classes, on random frames: 800 per utterance on average, 2,400 at
most; 10 utterances per step on a GPU, 4 on a CPU. Nothing is recognised: the paper's corpus is licensed.
Every attention runs in its own processes, which take turns; running out of memory or time becomes a row.
Results are saved after every case: run the same command again to resume. On two cores it takes about ten
minutes; the machine should do nothing else.
"""

from functools import partial
from importlib.util import find_spec
from typing import Any

if not (find_spec("torch") and find_spec("benchmarks")):
    raise SystemExit("error: not this project's Python; run .venv/bin/python benchmarks/speech_cost.py")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import SEQUENCE_METHODS, Size, model_config
from benchmarks.run import CostBenchmark
from benchmarks.worker import measure_steps
from lab.console import run_command
from lab.papers import read_table
from lab.publish.costs import Cell, Results, cell, measured_on, ratio, shown
from lab.publish.tables import markdown_table, spread
from lab.publish.tables import shown as or_dash

COMPARED = {"softmax": "softmax", "reformer-4": "lsh-4", "elu": "linear"}
"""The paper's name of each attention that is measured."""
LONGEST = 2400
FULL = {"lengths": [LONGEST], "rounds": 3, "steps": 3}
UTTERANCES = {"cuda": 10, "cpu": 4}  # the paper's batch; with softmax it takes more than 24 GiB
QUICK = {"lengths": [64], "utterances": 2, "rounds": 1, "steps": 1}
PAPER = Size(layers=9, width=192, heads=6, vocabulary=42)
TINY = Size(layers=2, width=12, heads=2, vocabulary=5)
FILTERBANKS = 40  # of a frame
FRAMES_PER_PHONEME = 8
MEAN_SHARE = (2.0, 4.0)  # Beta distribution of length / longest: a third on average, 800 of 2,400 frames
BLANK = 0


class SpeechEncoder(nn.Module):
    """Frames through a linear map and bidirectional post-norm layers to log-probabilities of classes.

    Args:
        method: a name of `SEQUENCE_METHODS`.
        size: layers, width, heads; `vocabulary` is the classes, the blank included.
        longest: frames.
    """

    def __init__(self, method: str, size: Size, longest: int) -> None:
        from user_dir.models.stack import build_layers, planned_layers
        from user_dir.modules import SinusoidalPositions

        super().__init__()
        chosen = SEQUENCE_METHODS[method]
        settings = {
            "encoder_layers": size.layers,
            "encoder_embed_dim": size.width,
            "encoder_attention_heads": size.heads,
            "encoder_ffn_embed_dim": 4 * size.width,
            "activation_fn": "relu",
            "activation_dropout": 0.1,
            "max_positions": longest,
            **chosen.settings,
        }
        cfg = model_config("roberta_softmax", **settings)
        self.embed = nn.Linear(FILTERBANKS, size.width)
        self.positions = SinusoidalPositions(size.width, padding_idx=-1)
        self.layers = build_layers(cfg, "encoder", planned_layers(cfg, "encoder", chosen.plan))
        self.output = nn.Linear(size.width, size.vocabulary)

    def forward(self, frames: Tensor, lengths: Tensor) -> Tensor:
        """Log-probabilities `(N, B, classes)` of `frames: (B, N, 40)` with padding after `lengths: (B,)`."""
        places = torch.arange(frames.shape[1], device=frames.device)
        padding_mask = places >= lengths[:, None]
        x = self.embed(frames) + self.positions(places.unsqueeze(0))
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0).transpose(0, 1).contiguous()
        for layer in self.layers:
            x = layer(x, key_padding_mask=padding_mask)
        return F.log_softmax(self.output(x), dim=-1)


class SpeechModel:
    """The encoder with its loss and optimizer.

    Args: as for `LanguageModel`; `architecture` is a name of `SEQUENCE_METHODS`, `length` frames of the
    longest utterance, one of a batch.
    """

    def __init__(self, architecture: str, size: Size, length: int, positions: int, device: str) -> None:
        self.classes, self.device = size.vocabulary, device
        self.model = SpeechEncoder(architecture, size, positions).to(device)
        self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=1e-4)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def sample(self, rows: int, length: int) -> dict[str, Any]:
        """Random utterances and phonemes, a third of `length` long on average, the first one as long."""
        share = torch.distributions.Beta(*map(torch.tensor, MEAN_SHARE)).sample((rows,))
        lengths = (share * length).long().clamp(min=min(2 * FRAMES_PER_PHONEME, length), max=length)
        lengths[0] = length
        spoken = (lengths // FRAMES_PER_PHONEME).clamp(min=1)
        phonemes = torch.randint(BLANK + 1, self.classes, (rows, int(spoken.max())))
        parts = (torch.randn(rows, length, FILTERBANKS), lengths, phonemes, spoken)
        names = ("frames", "lengths", "phonemes", "spoken")
        moved = {name: x.to(self.device) for name, x in zip(names, parts, strict=True)}
        return {**moved, "ntokens": int(lengths.sum())}

    def train_step(self, sample: dict[str, Any]) -> None:
        """Forward, backward and the update."""
        self.model.train()
        out = self.model(sample["frames"], sample["lengths"])
        loss = F.ctc_loss(out, sample["phonemes"], sample["lengths"], sample["spoken"], BLANK)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


MEASURES = {"training": partial(measure_steps, build=SpeechModel)}


def found(results: Results, name: str) -> Cell | None:
    """The figures of an attention."""
    [longest] = results["settings"]["lengths"]
    return cell(results, "training", name, longest)


def markdown(results: Results) -> str:
    """The whole report."""
    paper = {row["method"]: float(row["seconds_per_epoch"]) for row in read_table("linear_03_speech")}
    rows = []
    for name in results["settings"]["architectures"]:
        known = found(results, name)
        memory = f"{known.peak:,.0f}" if known and known.seconds else "–"
        relative = or_dash(ratio(known, found(results, "softmax"), lambda c: c.median), ".2f")
        published = f"{paper[COMPARED[name]] / paper['softmax']:.2f}"
        rows.append(
            [
                SEQUENCE_METHODS[name].label,
                shown(known, lambda c: spread(c.seconds)),
                memory,
                relative,
                published,
            ]
        )
    header = ["", "seconds per step, median (range)", "peak memory, MiB", "time over softmax's", "paper"]
    return f"{caption(results)}\n\n{markdown_table(header, rows)}\n"


def caption(results: Results) -> str:
    """One paragraph: model, batch, differences, machine, day."""
    settings = results["settings"]
    [longest], size = settings["lengths"], Size(**settings["size"])
    return (
        f"Speech encoder of Katharopoulos et al. 2020 (section 4.3): {size.layers} layers, width "
        f"{size.width}, {size.heads} heads, bidirectional, CTC over {size.vocabulary} classes, RAdam; "
        f"{settings['utterances']} random utterances a step of {longest // 3:,} frames on average and "
        f"{longest:,} at most. The paper's column is the ratio of its seconds per epoch (Table 3), on a GPU "
        "and with other code. Here softmax is the fused operator where torch has one with dropout. "
        f"{measured_on(results)}"
    )


def settings_for(device: str, quick: bool) -> dict[str, Any]:
    """The settings of a measurement."""
    size, plan = (TINY, QUICK) if quick else (PAPER, {**FULL, "utterances": UTTERANCES[device]})
    return {"size": size.as_dict(), **plan}


BENCHMARK = CostBenchmark(
    __file__,
    __doc__,
    {name: SEQUENCE_METHODS[name] for name in COMPARED},
    300,
    settings_for,
    markdown,
    question=lambda arguments, settings, case: {"tokens": settings["utterances"] * case["length"]},
)
main = BENCHMARK.main

if __name__ == "__main__":
    run_command(main)
