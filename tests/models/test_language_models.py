"""Whole language models: the laws with padding on either side, sizes, checkpoints, options."""

import re

import pytest
import torch
from fairseq.models import MODEL_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel

from lab.files import ROOT
from tests.helpers.build import assert_all_train, assert_same_gradients
from tests.helpers.golden import load, relative, state
from tests.helpers.lm import PAD, build_lm, tokens
from tests.models.test_joined_positions import FRAME
from user_dir.errors import UserError

MODELS = {
    "t1": ("transnormer_t1", {}),
    "t2": ("transnormer_t2", {}),
    "elu": ("linear_transformer_lm", {}),
    "softmax": ("linear_transformer_lm", {"decoder_attention": "softmax*2"}),
    "parallel": ("transnormer_t1", {"decoder_attention": "diag+norm,elu", "diag_block_size": 5}),
    "learned": ("transnormer_t2", {"decoder_learned_pos": True, "decoder_norm": "layernorm"}),
    "lln": ("lln_lm", {}),
    "lln_diag": ("lln_diag_lm", {"lln_diag_block_size": 16}),
    "performer": ("performer_lm", {"performer_features": 8}),
    "cosformer": ("cosformer_lm", {}),
    "transformer_ls": ("transformer_ls_lm", {"transformer_ls_window": 16, "transformer_ls_chunk": 8}),
    "flash": ("flash_lm", {"flash_key_dim": 8, "flash_chunk_size": 16}),
    "flash_quad": ("flash_quad_lm", {"flash_quad_key_dim": 8, "flash_quad_positions": 40}),
    "tnn": ("tnn_lm", {"tnn_network_dim": 8, "glu_dim": 24}),
    "retention": ("retnet_lm", {"glu_dim": 24}),
    "lightning": ("transnormerllm", {}),
    "gated": ("gated_linear_lm", {"gated_value_dim": 12}),
    "joined": ("linear_transformer_lm", {"decoder_attention": "reformer,elu", **FRAME}),
}
# Their scale is that of the batch's real tokens in training, so that there a row depends on its neighbours.
BATCH_STATISTICS = ("lln", "lln_diag")
# Those whose decoding state grows with the text; that of transformer_ls by a vector a chunk.
GROWING = ("softmax", "transformer_ls", "flash_quad", "tnn")
models = pytest.mark.parametrize("key", MODELS)
# Those of the attentions themselves have separate tests (tests/attention/every).
LENGTHS = (1, 65, 150)
lengths = pytest.mark.parametrize("length", LENGTHS, ids="N{}".format)


def build(key, dtype=torch.float64, **options):
    arch, own = MODELS[key]
    return build_lm(arch, **{**own, **options}).to(dtype)


def close(a, b, tolerance=1e-8):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def padded(rows, length, left):
    """Rows of different length as one batch; `left` says for each row where its padding goes."""
    batch = torch.full((len(rows), length), PAD)
    for i, row in enumerate(rows):
        here = slice(length - len(row), length) if left[i] else slice(0, len(row))
        batch[i, here] = row
    return batch


def test_the_table_of_mechanisms_has_the_models_that_the_text_above_it_says():
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    peers, with_decays = rows[rows.index("performer") :], ["retention", "lightning", "gated"]
    assert {"retnet_lm", "transnormerllm", "gated_linear_lm"} <= set(MODEL_REGISTRY)
    assert with_decays == [name for name in peers if f"roberta_{name}" not in MODEL_REGISTRY]
    language_models = [name for name in peers if f"{name}_lm" in MODEL_REGISTRY]
    assert language_models == peers[: peers.index("tnn") + 1]


@models
@lengths
@torch.no_grad()
def test_causal(key, length):
    model = build(key)
    x = tokens(2, length)
    out = model(x)[0]
    for j in {0, length // 2, length - 1}:
        changed = x.clone()
        changed[:, j:] = tokens(2, length - j, seed=1)
        close(model(changed)[0][:, :j], out[:, :j])


@pytest.mark.parametrize(
    ("key", "training"),
    [(key, mode) for key in MODELS for mode in (False, True)[: 1 + (key not in BATCH_STATISTICS)]],
)
@lengths
@torch.no_grad()
def test_padding_changes_nothing_on_either_side(key, length, training):
    model = build(key).train(training)
    rows = [tokens(1, n, seed=n)[0] for n in (length, max(1, length // 2), 1, max(1, length - 1))]
    alone = [model(row[None])[0][0] for row in rows]
    for left in ([False] * 4, [True] * 4, [True, False, True, True]):
        out = model(padded(rows, length, left))[0]
        for i, row in enumerate(rows):
            here = slice(length - len(row), length) if left[i] else slice(0, len(row))
            close(out[i, here], alone[i])


@models
@torch.no_grad()
def test_incremental_equals_full(key):
    model, x = build(key), tokens(3, 150)
    state: dict = {}
    steps = torch.cat([model(x[:, : i + 1], incremental_state=state)[0] for i in range(150)], 1)
    for length in LENGTHS:
        full = model(x[:, :length])[0]
        close(steps[:, :length], full)
        prompt = length // 2 + 1
        state = {}
        out = [model(x[:, :prompt], incremental_state=state)[0]]
        # Continue with the last token alone, not the whole prefix.
        out += [model(x[:, i : i + 1], incremental_state=state)[0] for i in range(prompt, length)]
        close(torch.cat(out, 1), full)


@models
@torch.no_grad()
def test_incremental_with_padding_on_the_left(key):
    model = build(key)
    rows = [tokens(1, n, seed=n)[0] for n in (90, 37, 1)]
    x = padded(rows, 90, [True] * 3)
    state: dict = {}
    steps = [model(x[:, : i + 1], incremental_state=state)[0] for i in range(90)]
    out = torch.cat(steps, 1)
    for i, row in enumerate(rows):
        close(out[i, 90 - len(row) :], model(row[None])[0][0])


@models
@torch.no_grad()
def test_beams_are_reordered(key):
    model = build(key)
    x = tokens(3, 30)
    order = torch.tensor([1, 1, 0, 2])
    state: dict = {}
    for i in range(20):
        model(x[:, : i + 1], incremental_state=state)
    model.decoder.reorder_incremental_state_scripting(state, order)
    x = x[order]
    steps = [model(x[:, : i + 1], incremental_state=state)[0] for i in range(20, 30)]
    close(torch.cat(steps, 1), model(x)[0][:, 20:])


@models
@torch.no_grad()
def test_segments_with_padding_and_reordered_rows(key):
    """Segments of any length, with padding on either side or nothing else; rows repeat or vanish between."""
    model, state, generator = build(key), {}, torch.Generator().manual_seed(0)
    rows = [tokens(1, 0)[0]] * 4
    for step, length in enumerate((3, 1, 17, 1, 40, 2)):
        counts = torch.randint(0, length + 1, (4,), generator=generator).tolist()
        new = [tokens(1, count, seed=4 * step + i)[0] for i, count in enumerate(counts)]
        rows = [torch.cat(both) for both in zip(rows, new, strict=True)]
        left = step % 2 == 0
        out = model(padded(new, length, [left] * 4), incremental_state=state, next_segment=True)[0]
        for i, count in enumerate(counts):
            here = slice(length - count, length) if left else slice(0, count)
            if count:
                close(out[i, here], model(rows[i][None])[0][0, -count:])
        order = torch.randint(0, 4, (4,), generator=generator)
        model.decoder.reorder_incremental_state_scripting(state, order)
        rows = [rows[i] for i in order.tolist()]


@pytest.mark.parametrize("key", sorted(set(MODELS) - set(GROWING)))
def test_decoding_state_has_constant_size(key):
    model = build(key, torch.float32)

    def size(length):
        state: dict = {}
        with torch.no_grad():
            model(tokens(1, length), incremental_state=state)
        return sum(x.numel() for own in state.values() for x in own.values() if torch.is_tensor(x))

    assert size(200) == size(5)


@models
def test_a_saved_model_gives_the_same(key):
    model, other = build(key), build(key)
    x = tokens(2, 40)
    model.train()(x)  # averages other than those it was built with
    out = model.eval()(x)[0]
    assert torch.equal(model(x)[0], out) and not torch.equal(other(x)[0], out)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x)[0], out)


@pytest.mark.parametrize("run", ["L150", "L128"])
@pytest.mark.parametrize("kind", ["silu", "head"])
def test_authors_checkpoint_gives_their_logits_and_gradients(golden_dir, run, kind):
    arrays = load(golden_dir, "transnormer_t1_lm.npz")
    model = build_lm(
        "transnormer_t1",
        words=50,
        decoder_embed_dim=32,
        decoder_layers=4,
        decoder_attention_heads=4,
        glu_activation={"silu": "silu", "head": "identity"}[kind],
    )
    model.load_state_dict(state(arrays), strict=True)
    logits = model(torch.tensor(arrays[f"{run}/tokens"]))[0]
    assert relative(logits, arrays[f"{run}/{kind}/logits"]) < 1e-5
    targets = torch.tensor(arrays[f"{run}/targets"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert relative(parameter.grad, arrays[f"{run}/{kind}/grad/{name}"]) < 5e-5, name


def test_softmax_plan_is_fairseqs_transformer():
    """The vanilla body is fairseq's: its weights load and give its logits."""
    vanilla = build_lm("transformer_lm")
    assert isinstance(vanilla, TransformerLanguageModel)
    ours = build_lm("linear_transformer_lm", decoder_attention="softmax*2")
    ours.load_state_dict(vanilla.state_dict(), strict=True)
    x = tokens(2, 50)
    close(ours(x)[0], vanilla(x)[0], 1e-5)


def test_adaptive_embeddings_and_softmax():
    model = build_lm(
        "transnormer_t1",
        words=100,
        adaptive_input=True,
        adaptive_input_cutoff="20,60",
        adaptive_softmax_cutoff="20,60",
        tie_adaptive_weights=True,
        decoder_embed_dim=32,
    )
    out = model(tokens(2, 9, words=100))
    assert out[0].shape == (2, 9, 32)
    probabilities = model.get_normalized_probs(out, log_probs=False)
    assert probabilities.shape == (2, 9, 100)
    close(probabilities.sum(-1), torch.ones(2, 9), 1e-4)
    words = [part[0].weight for part in model.decoder.embed_tokens.embeddings]
    shared = {parameter.data_ptr() for parameter in model.decoder.adaptive_softmax.parameters()}
    assert len(words) == 3 and {weight.data_ptr() for weight in words} <= shared


def test_options_of_adaptive_embeddings_and_softmax():
    model = build_lm(
        "transnormer_t1",
        words=100,
        decoder_embed_dim=32,
        adaptive_input=True,
        adaptive_input_cutoff="20,60",
        adaptive_input_factor=2.0,
        adaptive_softmax_cutoff="20,60",
        adaptive_softmax_factor=2.0,
        adaptive_softmax_dropout=0.3,
    )
    assert [part[0].embedding_dim for part in model.decoder.embed_tokens.embeddings] == [32, 16, 8]
    tail = model.decoder.adaptive_softmax.tail
    assert [part[0].out_features for part in tail] == [16, 8]
    assert [part[1].p for part in tail] == [0.3, 0.3]


def test_options_that_leave_a_part_out():
    decoder = build_lm("linear_transformer_lm").decoder
    assert decoder.embed_positions is not None and decoder.layer_norm is not None
    assert (
        build_lm("linear_transformer_lm", no_token_positional_embeddings=True).decoder.embed_positions is None
    )
    assert (
        getattr(build_lm("linear_transformer_lm", no_decoder_final_norm=True).decoder, "layer_norm", None)
        is None
    )


def test_untied_projection():
    tied = build_lm("transnormer_t1")
    own = build_lm("transnormer_t1", no_share_decoder_input_output_embed=True)
    difference = sum(p.numel() for p in own.parameters()) - sum(p.numel() for p in tied.parameters())
    assert difference == 40 * 24
    shared = build_lm("transnormer_t1", share_decoder_input_output_embed=True)
    assert shared.decoder.output_projection.weight is shared.decoder.embed_tokens.weight
    assert own.decoder.output_projection.weight is not own.decoder.embed_tokens.weight


@models
def test_every_parameter_trains_also_with_checkpointed_activations(key):
    plain = build(key).train()
    other = build(key, checkpoint_activations=True).train()
    other.load_state_dict(plain.state_dict())
    for model in (plain, other):
        model(tokens(2, 20))[0].square().sum().backward()
    assert_all_train(plain)
    assert_same_gradients(plain, other, rtol=1e-8, atol=1e-8)


def test_layer_drop_and_pruning():
    model = build_lm("transnormer_t1", decoder_layers=6, decoder_layerdrop=0.5).train()
    kept = [len(list(model.decoder.layers)) for _ in range(50)]
    assert min(kept) < 3 < max(kept) and 2 < sum(kept) / 50 < 4
    model.eval()
    assert {len(list(model.decoder.layers)) for _ in range(20)} == {6}
    kept = build_lm("transnormer_t1", decoder_layers=6, decoder_layers_to_keep="0,4")
    names = [type(layer.self_attn).__name__ for layer in kept.decoder.layers]
    assert names == ["DiagAttention", "NormAttention"]


@models
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_half_precision_trains_finitely(key, dtype):
    model = build(key, dtype).train()
    out = model(tokens(2, 70))[0]
    assert out.dtype == dtype
    out.float().logsumexp(-1).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize(
    ("arch", "options", "limit"),
    [
        ("transnormer_t1", {"decoder_learned_pos": True}, "256 learned positions"),
        ("cosformer_lm", {}, "256 of cosformer attention"),
    ],
)
def test_sequence_longer_than_the_model(arch, options, limit):
    model = build_lm(arch, **options)
    model(tokens(1, 256))
    with pytest.raises(UserError, match=f"257 tokens is longer than the {limit}"):
        model(tokens(1, 257))


@torch.no_grad()
def test_decoding_beyond_the_learned_positions():
    model = build("learned", tokens_per_sample=8, max_target_positions=8)
    rows = tokens(2, 9)
    rows[1, :3] = PAD
    state: dict = {}
    model(rows[:, :8], incremental_state=state)
    with pytest.raises(UserError, match="9 tokens is longer than the 8 learned positions"):
        model(rows, incremental_state=state)
    with pytest.raises(UserError, match="9 tokens is longer than the 8 learned positions"):
        model(rows, incremental_state={})


@torch.no_grad()
def test_padding_needs_no_learned_positions():
    model = build("learned", tokens_per_sample=8, max_target_positions=8)
    row = tokens(1, 8)
    expected = model(row)[0]
    for left in (True, False):
        x = padded(row, 10, [left])
        here = slice(2, 10) if left else slice(0, 8)
        close(model(x)[0][:, here], expected)
        state: dict = {}
        out = [model(x[:, : i + 1], incremental_state=state)[0] for i in range(10)]
        close(torch.cat(out, 1)[:, here], expected)
