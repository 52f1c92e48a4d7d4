"""Models that cannot be: a UserError that names the option, before anything is built.

Options of attentions are in tests/attention/every/test_user_errors.py; here are some that reach them.
"""

import io
import sys

import pytest
import torch

from tests.helpers.build import build_model
from tests.helpers.images import SMALL_VIT, build_pixel_model, build_vit, pixel_task, write_images
from tests.helpers.lm import build_lm
from tests.helpers.lra import lra_task
from tests.helpers.roberta import build_roberta
from user_dir.checks.settings import check_input
from user_dir.errors import UserError
from user_dir.models import stack
from user_dir.tasks.image_data import ImageShape

JOINED = {"absolute_positions": "joined", "no_share_decoder_input_output_embed": True}
BUILD = {
    "language model": lambda folder, options: build_lm("transnormer_t1", **options),
    "joined positions": lambda folder, options: build_lm("linear_transformer_lm", **{**JOINED, **options}),
    "encoder": lambda folder, options: build_roberta("roberta_nystromformer", **options),
    "Long Range Arena": lambda folder, options: build_model("lra_skyformer", lra_task("listops"), **options),
    "pixels": lambda folder, options: build_pixel_model(pixel_task(write_images(folder / "x")), **options),
    "ViT": lambda folder, options: build_vit(ImageShape(17, 8, 6, 3), **{**SMALL_VIT, **options}),
}
REFUSED = {
    "language model": [
        ({"decoder_attention": "diag*1"}, r"plan 'diag\*1' \(--decoder-attention\) describes 1 layers up to"),
        ({"decoder_attention": "diag,nrom"}, r"'nrom' is not an attention at character 6 of the layer"),
        ({"decoder_attention": "diag*x,norm"}, r"'x' is not a number of layers at character 1"),
        ({"decoder_attention": "diag*0,norm*2"}, r"'0' is not a number of layers at character 1"),
        ({"decoder_attention": "diag+,norm"}, r"'' is not an attention at character 1"),
        ({"decoder_attention": "norm*3"}, r"describes 3 layers .* but the model has 2; names are .*diag"),
        ({"decoder_attention_heads": 5}, "5 attention heads do not divide the width 24"),
        ({"diag_block_size": 0}, "block size of diag attention is 0"),
        ({"glu_activation": "swoosh"}, "unknown activation 'swoosh'; choose one of identity, silu"),
        ({"decoder_ffn": "moe"}, "unknown feed-forward network 'moe'; choose one of glu, ffn"),
        ({"decoder_norm": "batch"}, "unknown norm 'batch'; choose one of rmsnorm, layernorm"),
        ({"decoder_layers": 0}, "--decoder-layers is 0"),
        ({"tokens_per_sample": 512}, "--tokens-per-sample is 512, more than the 256 positions"),
        ({"adaptive_input": True}, "--adaptive-input needs --adaptive-input-cutoff"),
        ({"tie_adaptive_weights": True}, "--tie-adaptive-weights needs --adaptive-input"),
        ({"adaptive_softmax_cutoff": "exit(9)"}, r"--adaptive-softmax-cutoff is 'exit\(9\)'; write whole"),
        ({"adaptive_input": True, "adaptive_input_cutoff": "a"}, "--adaptive-input-cutoff is 'a'"),
        ({"adaptive_softmax_cutoff": "5,2000000"}, "'5,2000000'; its numbers must rise, to the dictionary's"),
        ({"adaptive_input": True, "adaptive_input_cutoff": "9,5"}, "-input-cutoff is '9,5'; its numbers"),
        ({"adaptive_input": True, "adaptive_input_cutoff": "5,5"}, "-input-cutoff is '5,5'; its numbers"),
        ({"decoder_layers_to_keep": "0,x"}, "--decoder-layers-to-keep is '0,x'; write the numbers"),
        ({"decoder_layers_to_keep": "-1"}, "--decoder-layers-to-keep is '-1'"),
        ({"decoder_layers_to_keep": "0,7"}, "names layer 7, but the last of 2 layers is 1"),
        ({"attention_backend": "magic"}, "backend is 'magic'; expected one of auto"),
        ({"decoder_final_norm": "batch"}, "unknown norm 'batch'; choose one of .*scalenorm"),
        ({"decoder_norm_position": "middle"}, "--decoder-norm-position is 'middle'; choose one of pre, post"),
        (
            {"decoder_attention": "flash*2", "decoder_attention_heads": 1, "decoder_norm_position": "post"},
            "post does not fit FLASH",
        ),
        ({"decoder_output_bias": "yes"}, "--decoder-output-bias is 'yes'; choose one of none, learned"),
        ({"decoder_init_std": -1.0}, "--decoder-init-std is -1.0"),
        (
            {"log_attention_statistics": -1},
            "-statistics is -1; it must be a number of updates, or 0",
        ),
        (
            {"decoder_attention": "flash*2", "decoder_attention_heads": 1, "log_attention_statistics": 5},
            "cannot measure gated units, attentions with decays, Reformer",
        ),
    ],
    "joined positions": [
        ({"no_share_decoder_input_output_embed": False}, "cannot be tied or adaptive"),
        ({"adaptive_input": True, "adaptive_input_cutoff": "20"}, "cannot be tied or adaptive"),
        ({"decoder_embed_dim": 18}, "a multiple of 4, not 18"),
        ({"absolute_positions": "split"}, "choose one of sinusoidal, learned, none, joined"),
    ],
    "encoder": [
        ({"encoder_attention": "diag*3"}, r"\(--encoder-attention\) describes 3 layers .* has 2"),
        ({"encoder_attention": "dig*2"}, "'dig' is not an attention at character 1"),
        ({"encoder_attention_heads": 5}, "5 attention heads do not divide the width 24"),
        ({"encoder_layers": 0}, "--encoder-layers is 0"),
        ({"encoder_norm": "batch"}, "unknown norm 'batch'"),
        ({"encoder_attention": "linformer*2", "linformer_rank": 257}, "--linformer-rank is 257; .* to 256"),
    ],
    "Long Range Arena": [
        ({"pooling": "max"}, "--pooling is 'max'; choose one of mean, padded-mean, cls, last"),
        ({"pixel_input": "text"}, "--pixel-input is 'text'; choose one of embedding, linear"),
        ({"vocabulary_size": 10}, "--vocabulary-size is 10, but the data have 18 symbols"),
        ({"transnormer_parts": "mine"}, "--transnormer-parts is 'mine'; choose one of paper, state-space"),
        ({"encoder_attention": "softmax*2,elu"}, "describes 3 layers"),
        ({"encoder_attention": "sofmax*2"}, "'sofmax' is not an attention"),
        ({"encoder_layers": 0}, "--encoder-layers is 0"),
        ({"encoder_attention": "cosformer", "cosformer_length": 9}, "--cosformer-length is 9, less than the"),
    ],
    "pixels": [
        ({"pixel_head": "gaussian"}, "--pixel-head is 'gaussian'; choose one of logistic, categorical"),
        ({"mixtures": 0}, "--mixtures is 0"),
        ({"decoder_attention": "bigbird"}, "'bigbird' has no causal form"),
        ({"max_target_positions": 5}, "--tokens-per-sample is 12, more than the 5 positions"),
    ],
    "ViT": [
        ({"patch_size": 3}, "--patch-size is 3, which does not divide the images' 8 x 6 pixels"),
        ({"patch_size": 0}, "--patch-size is 0; it must be a number from 1 up"),
        ({"pooling": "max"}, "--pooling is 'max'; choose one of cls, mean"),
        ({"absolute_positions": "joined"}, "--absolute-positions is 'joined'; choose one of learned, none"),
        ({"encoder_attention": "flash", "no_encoder_qkv_bias": True}, "--no-encoder-qkv-bias needs"),
        ({"encoder_embed_dim": float("nan")}, "--encoder-embed-dim is nan"),
        ({"encoder_attention": "cosformer", "cosformer_length": 3}, "--cosformer-length is 3, less than the"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "options", "message"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows]
)
def test_options_that_cannot_be(kind, options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        BUILD[kind](tmp_path, options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU all processes drop the same layers")
def test_layer_drop_of_lln_in_several_processes(monkeypatch):
    monkeypatch.setattr(stack, "get_data_parallel_world_size", lambda: 2)
    build_lm("transnormer_t1", decoder_layerdrop=0.1)
    with pytest.raises(UserError, match="--decoder-layerdrop drops other layers in each process"):
        build_lm("lln_diag_lm", decoder_layerdrop=0.1)


def test_typed_bytes_that_are_no_text(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Gödel\n".encode() + b"\x80\n"), "latin-1"))
    check_input("-")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        list(sys.stdin)
