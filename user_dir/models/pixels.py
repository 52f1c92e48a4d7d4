"""Models of images byte by byte: a language model's decoder with a head for the levels of a pixel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.nn.functional as F
from omegaconf import II
from torch import Tensor, nn

from conventions.plans import everywhere

from ..attention.parts.limits import check_count
from ..errors import check_choice
from ..modules.logistics import logistic_mixture_log_prob, logistic_mixture_sample, pick
from .architectures import Architecture
from .config import LanguageModelConfig, _option
from .decoder import LinearAttentionDecoder
from .language_model import LinearAttentionLM

HEADS = ("logistic", "categorical")


@dataclass
class PixelModelConfig(LanguageModelConfig):
    """A language model of bytes; the defaults are those of Katharopoulos et al. 2020 for MNIST."""

    pixel_head: str = _option(
        HEADS[0], "distribution of a byte: logistic (a mixture of discretised logistics) or categorical"
    )
    mixtures: int = _option(10, "components of the mixture")
    tokens_per_sample: Optional[int] = II("task.tokens_per_sample")  # known once the data are opened


class PixelDecoder(LinearAttentionDecoder):
    """The decoder with 3 J outputs for a mixture of J logistics, or one for each level, and a bias."""

    def _build_output(self, cfg: Any, dictionary: Any) -> None:
        logistic = cfg.pixel_head == "logistic"
        outputs = 3 * cfg.mixtures if logistic else len(dictionary) - dictionary.nspecial
        self.output_projection = nn.Linear(cfg.decoder_embed_dim, outputs)


class PixelModel(LinearAttentionLM):
    """Images byte by byte; architectures are subclasses with default plans."""

    decoder_class = PixelDecoder

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "PixelModel":
        """The model that `args` (a `PixelModelConfig`) describes; raises UserError if it is invalid."""
        check_choice("--pixel-head is", args.pixel_head, HEADS)
        check_count("--mixtures", args.mixtures)
        args.tokens_per_sample = task.shape.dims
        args.no_share_decoder_input_output_embed = True  # the outputs are not tokens
        model = super().build_model(args, task)
        dictionary = task.target_dictionary
        model.logistic = args.pixel_head == "logistic"
        model.first_level, model.levels = dictionary.nspecial, len(dictionary) - dictionary.nspecial
        return model

    def log_prob(self, net_output: tuple, target: Tensor) -> Tensor:
        """`ln p` of the tokens `target: (B, N)`, `(B, N)` in float32; without meaning at special symbols."""
        outputs, levels = net_output[0], (target - self.first_level).clamp(min=0)
        if self.logistic:
            return logistic_mixture_log_prob(outputs, levels, self.levels)
        return F.log_softmax(outputs.float(), dim=-1).gather(-1, levels.unsqueeze(-1)).squeeze(-1)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Tokens `(B,)` drawn from `outputs: (B, outputs)` with `uniform: (B, 2)` numbers of (0, 1)."""
        if self.logistic:
            return self.first_level + logistic_mixture_sample(outputs, uniform, self.levels)
        return self.first_level + pick(torch.softmax(outputs.float(), dim=-1), uniform[:, 0])

    def get_normalized_probs(
        self, net_output: tuple, log_probs: bool, sample: Mapping[str, Any] | None = None
    ) -> Tensor:
        """(Log-)probabilities of all tokens, `(B, N, vocabulary)`; special symbols have none."""
        outputs = net_output[0]
        if self.logistic:
            every = torch.arange(self.levels, device=outputs.device)
            known = logistic_mixture_log_prob(outputs.unsqueeze(-2), every, self.levels)
        else:
            known = F.log_softmax(outputs.float(), dim=-1)
        whole = F.pad(known, (self.first_level, 0), value=float("-inf"))
        return whole if log_probs else whole.exp()


# Katharopoulos et al. 2020, supplement: the frame of their models, and the sizes for MNIST.
PAPER = {
    "decoder_layers": 8,
    "decoder_embed_dim": 256,
    "decoder_attention_heads": 8,
    "decoder_ffn_embed_dim": 1024,
    "absolute_positions": "joined",
    "decoder_norm_position": "post",
    "decoder_final_norm": "layernorm",
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
}
ARCHITECTURES = (
    Architecture("pixel_linear", everywhere("elu"), PAPER),
    Architecture("pixel_softmax", everywhere("softmax"), PAPER),
    Architecture("pixel_lsh", everywhere("reformer"), PAPER),
)
for row in ARCHITECTURES:
    row.register(PixelModel, PixelModelConfig, causal=True)
