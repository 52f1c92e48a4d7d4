"""Small language models for the tests."""

from types import SimpleNamespace

import torch
from fairseq.data import Dictionary

from tests.helpers.build import build_model

SMALL = {
    "decoder_embed_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "tokens_per_sample": 256,
    "max_target_positions": 256,
}
PAD = 1


def dictionary(words: int) -> Dictionary:
    """`words` entries, fairseq's four special symbols included."""
    result = Dictionary()
    for i in range(words - len(result)):
        result.add_symbol(f"w{i}")
    return result


def build_lm(arch: str, words: int = 40, **options):
    """A model of the named architecture, of small size unless `options` say otherwise, in evaluation mode."""
    settings = {**SMALL, **options}
    if arch == "transformer_lm":  # the vanilla body the others are compared with
        width = settings["decoder_embed_dim"]
        settings = {
            "decoder_normalize_before": True,
            "share_decoder_input_output_embed": True,
            "decoder_input_dim": width,
            "decoder_output_dim": width,
            "tpu": False,
            "add_bos_token": False,
            **settings,
        }
    vocabulary = dictionary(words)
    task = SimpleNamespace(source_dictionary=vocabulary, target_dictionary=vocabulary)
    return build_model(arch, task, **settings)


def tokens(batch: int, length: int, words: int = 40, seed: int = 0) -> torch.Tensor:
    """`(batch, length)` word indices, no special symbols."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, words, (batch, length), generator=generator)
