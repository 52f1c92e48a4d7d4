"""The encoder of Katharopoulos et al. 2020 (4.3) for phonemes, trained with CTC on random frames."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import MODEL_DATACLASS_REGISTRY
from torch import Tensor, nn

import user_dir  # noqa: F401  (registers the models)
from pipeline.methods import Size
from pipeline.sequence_methods import SEQUENCE_METHODS
from user_dir.models.stack import build_layers, planned_layers
from user_dir.modules import SinusoidalPositions

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
        super().__init__()
        cfg = MODEL_DATACLASS_REGISTRY["roberta_softmax"]()
        settings = {
            "encoder_layers": size.layers,
            "encoder_embed_dim": size.width,
            "encoder_attention_heads": size.heads,
            "encoder_ffn_embed_dim": 4 * size.width,
            "activation_fn": "relu",
            "activation_dropout": 0.1,
            "max_positions": longest,
        }
        chosen = SEQUENCE_METHODS[method]
        own = {key.lstrip("-").replace("-", "_"): int(value) for key, value in chosen.options.items()}
        for name, value in {**settings, **own}.items():
            setattr(cfg, name, value)
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

    Args: as for `benchmarks.workers.language_models.LanguageModel`; `architecture` is a name of
    `SEQUENCE_METHODS`, `length` frames of the longest utterance, one of a batch.
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
