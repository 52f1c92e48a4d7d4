"""The frame of Katharopoulos et al. 2020: joined positions, post-norm layers and a norm after the last.

Its laws are in test_language_models.py.
"""

import torch

from tests.helpers.lm import PAD, build_lm, tokens
from user_dir.modules import InterleavedPositions

FRAME = {
    "absolute_positions": "joined",
    "no_share_decoder_input_output_embed": True,
    "decoder_output_bias": "learned",
    "decoder_norm_position": "post",
    "decoder_final_norm": "layernorm",
}


def build(plan="elu*2", **options):
    model = build_lm("linear_transformer_lm", decoder_attention=plan, **{**FRAME, **options})
    return model.double()


def test_positions_are_interleaved_and_start_at_0():
    rows = InterleavedPositions(6)(torch.tensor([[0, 1, 50]]))[0]
    for position, row in zip((0, 1, 50), rows, strict=True):
        angles = position * 10000 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
        torch.testing.assert_close(row[0::2], angles.sin().float())
        torch.testing.assert_close(row[1::2], angles.cos().float())


def test_embeddings_are_half_the_width_and_not_scaled():
    decoder = build(decoder_embed_dim=128, decoder_attention_heads=4).decoder
    weight = decoder.embed_tokens.weight
    assert weight.shape == (40, 64) and 0.9 < weight[PAD + 1 :].std() < 1.1
    token = tokens(1, 3)
    states = decoder(token)[1]["inner_states"]
    torch.testing.assert_close(states[0][2, 0, :64], weight[token[0, 2]])
    positions = InterleavedPositions(64)(torch.tensor([[2]]))[0, 0]
    torch.testing.assert_close(states[0][2, 0, 64:], positions.double())


def test_the_output_is_normalised_after_post_norm_layers():
    decoder = build().decoder
    x, extra = decoder.extract_features(tokens(2, 9))
    last = extra["inner_states"][-1].transpose(0, 1)
    torch.testing.assert_close(x, torch.nn.functional.layer_norm(last, (24,)))
    assert build(decoder_final_norm=None).decoder.layer_norm is None


def test_size_of_the_papers_copy_model():
    """3,163,787 with 11 symbols (Katharopoulos et al. 2020, their code), and fairseq's 4 special ones."""
    model = build(
        "softmax*4",
        words=15,
        decoder_layers=4,
        decoder_embed_dim=256,
        decoder_attention_heads=8,
        decoder_ffn_embed_dim=1024,
    )
    assert sum(p.numel() for p in model.parameters()) == 3_163_787 + 4 * (128 + 257)
