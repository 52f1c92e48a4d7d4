"""Small RoBERTa encoders for the tests."""

from types import SimpleNamespace
from unittest import mock

import torch

from tests.helpers.build import build_model
from tests.helpers.lm import PAD, dictionary

__all__ = ["PAD", "SMALL_PARTS", "build_roberta", "sentences", "task"]

SMALL = {
    "encoder_embed_dim": 24,
    "encoder_ffn_embed_dim": 40,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "max_positions": 256,
}


# Parts small enough that a sentence of some dozens of tokens has more of them than one.
SMALL_PARTS = {
    "nystromformer_landmarks": 16,
    "linformer_rank": 16,
    "skyformer_landmarks": 16,
    "informer_factor": 2,
    "transformer_ls_rank": 4,
    "reformer_chunk_size": 16,
    "bigbird_block_size": 8,
    "longformer_window": 16,
    "diag_block_size": 16,
    "lln_diag_block_size": 16,
    "flash_chunk_size": 16,
}


def task(words: int) -> SimpleNamespace:
    """The attributes of fairseq's masked_lm task that a model reads."""
    vocabulary = dictionary(words)
    return SimpleNamespace(
        source_dictionary=vocabulary, target_dictionary=vocabulary, max_positions=lambda: 512
    )


def build_roberta(arch: str, words: int = 40, base_size: bool = False, **options):
    """An encoder of the named architecture, small unless `base_size` (then without storage), to evaluate."""
    if not base_size:
        return build_model(arch, task(words), **{**SMALL, **options})
    # fairseq's initialisation needs values.
    with torch.device("meta"), mock.patch("fairseq.models.roberta.model.init_bert_params"):
        return build_model(arch, task(words), **options)


def sentences(lengths, width=None, words=40, left=False, seed=0) -> torch.Tensor:
    """Rows of random words, `(batch, width)`, with padding on the right or on the left."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, length in enumerate(lengths):
        place = slice(batch.shape[1] - length, None) if left else slice(length)
        batch[row, place] = torch.randint(4, words, (length,), generator=generator)
    return batch
