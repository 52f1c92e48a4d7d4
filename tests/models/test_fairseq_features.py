"""Features of fairseq and PyTorch for any model: prune, average, pickle, keep dropout, fine-tune."""

import copy
import pickle
from argparse import Namespace
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf

from tests.helpers.build import build_model
from tests.helpers.lm import build_lm, tokens
from tests.helpers.lra import SHORT, SMALL, lra_task
from tests.helpers.roberta import build_roberta, sentences
from user_dir.checks.same_settings import check_same_run, check_same_settings
from user_dir.checks.training import check_carried, check_pruning
from user_dir.errors import UserError
from user_dir.models.roberta import head_activation


def test_training_a_pruned_model_is_refused():
    check_pruning(Namespace(decoder_layers_to_keep=None))
    with pytest.raises(UserError, match=r"--decoder-layers-to-keep prunes a trained model; .*: '0,2'"):
        check_pruning(Namespace(decoder_layers_to_keep="0,2"))


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [
        ("a:b", {}, "a:b names several folders"),
        ("a", {"decoder_layerdrop": 0.5}, "give no --decoder-layerdrop"),
        ("a", {"_name": "cosformer_lm"}, "give --cosformer-length"),
        ("a", {"decoder_attention": "cosformer,norm"}, "give --cosformer-length"),
        ("a", {"_name": "cosformer_lm", "cosformer_length": 4096}, None),
        ("a", {}, None),
    ],
)
def test_carried_state_that_would_be_lost_or_not_reach(data, model, said):
    usual = {"_name": "transnormer_t1", "decoder_attention": None, "cosformer_length": None}
    with pytest.raises(UserError, match=said) if said else nullcontext():
        check_carried(Namespace(data=data), Namespace(**{**usual, **model}))


@pytest.mark.parametrize("arch", ["transnormer_t1", "tnn_lm", "lra_skyformer"])
def test_pruned_weights_fit_the_pruned_model(arch):
    """Also layers with layers inside (TNN), and a stack that is not inside another module."""

    def build(**options):
        if arch == "lra_skyformer":
            return build_model(arch, lra_task("listops", length=70), **{**SMALL, **SHORT, **options})
        return build_lm(arch, **options)

    side = "encoder" if arch == "lra_skyformer" else "decoder"
    whole = build(**{f"{side}_layers": 4})
    keep = {f"{side}_layers_to_keep": "0,2"}
    pruned = build(**{f"{side}_layers": 4}, **keep)
    cfg = Namespace(attention_backend="auto", arch=arch, **keep)
    pruned.load_state_dict(checkpoint_utils.prune_state_dict(whole.state_dict(), cfg), strict=True)
    stacks = [getattr(model, side, model).layers for model in (whole, pruned)]
    for old, new in zip((stacks[0][0], stacks[0][2]), stacks[1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True))


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("lln_lm", {}),
        ("performer_lm", {}),
        ("linear_transformer_lm", {"decoder_attention": "reformer", "reformer_redraw": True}),
        ("transnormer_t1", {}),
    ],
)
def test_averaged_weights(arch, options):
    """Counters and drawn numbers are copied, weights averaged, a tied matrix once."""
    model = build_lm(arch, **options).train()
    settings = {"ema_decay": 0.75, "ema_seed_model": None, "ema_fp32": False}
    ema = EMA(model, SimpleNamespace(**settings, ema_start_update=0, ema_update_freq=1))
    before = copy.deepcopy(model.state_dict())
    model(tokens(2, 20))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
        for buffer in model.buffers():
            buffer.add_(1)
    ema.step(model, updates=1)
    for key, x in ema.get_model().state_dict().items():
        now = model.state_dict()[key]
        copied = not x.is_floating_point() or key.endswith(("eval_proj", "rotations"))
        wanted = now if copied else 0.75 * before[key] + 0.25 * now
        torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize("arch", ["transnormer_t2", "lln_diag_lm", "flash_lm"])
def test_language_models_are_pickled(arch):
    options = {"glu_activation": "identity"} if arch == "transnormer_t2" else {}
    model = build_lm(arch, **options)
    copied = pickle.loads(pickle.dumps(model))
    assert type(copied) is type(model) and torch.equal(copied(tokens(2, 9))[0], model(tokens(2, 9))[0])


def test_encoders_are_pickled():
    model = build_roberta("roberta_transnormer_t1")
    copied = pickle.loads(pickle.dumps(model))
    assert torch.equal(copied(sentences([9]))[0], model(sentences([9]))[0])


@pytest.mark.parametrize("attention", ["softmax*2", "diag*2", "lln_diag*2", "norm*2"])
@torch.no_grad()
def test_dropout_that_is_retained(attention):
    """In whole sequences and step by step; none without `--retain-dropout`."""
    model = build_lm(
        "transnormer_t2", decoder_attention=attention, attention_dropout=0.5, activation_dropout=0.5
    )
    text = tokens(2, 20)

    def steps():
        state = {}
        return torch.cat([model(text[:, : n + 1], incremental_state=state)[0] for n in range(20)], 1)

    for run in (lambda: model(text)[0], steps):
        assert torch.equal(run(), run())
    model.make_generation_fast_(retain_dropout=True)
    for run in (lambda: model(text)[0], steps):
        assert not torch.equal(run(), run())


def test_a_model_of_inference_mode_runs():
    with torch.inference_mode():
        model = build_lm("transnormer_t1")
        assert torch.equal(model(tokens(2, 9))[0], model(tokens(2, 9))[0])


def test_other_positions_do_not_start_from_the_weights():
    model = {"_name": "a", "attention_backend": "auto", "absolute_positions": "none", "max_positions": 8}
    saved = {"model": Namespace(**model), "task": Namespace()}
    given = {"model": Namespace(**model), "task": Namespace()}
    given["model"].max_positions = 16
    check_same_settings("x.pt", saved, given, resumes=False)
    given["model"].absolute_positions = "sinusoidal"
    with pytest.raises(UserError, match="absolute_positions is 'none', not 'sinusoidal'"):
        check_same_settings("x.pt", saved, given, resumes=False)


def test_cosformer_keeps_its_m_where_only_weights_are_taken_over():
    """No weight has its size, which is the model's longest sequence by default."""

    def check(resumes=False, **changes):
        model = {"attention_backend": "auto", "_name": "cosformer_lm", "tokens_per_sample": 32}
        given = {"cosformer_length": None, "max_target_positions": None, **model}
        groups = ({"model": Namespace(**one), "task": Namespace()} for one in (given, {**given, **changes}))
        check_same_settings("x.pt", *groups, resumes=resumes)

    for same in ({}, {"max_target_positions": 64, "cosformer_length": 32}, {"decoder_dropout": 0.1}):
        check(**same)
    for other in ({"tokens_per_sample": 64}, {"max_target_positions": 64}, {"cosformer_length": 64}):
        with pytest.raises(UserError, match="cosformer_length is 32, not 64"):
            check(**other)


def test_weights_of_an_untied_model_do_not_load_into_a_tied_one():
    """Loading would keep the output's and lose the embeddings, as if all were well."""
    untied, tied = (
        build_lm("transnormer_t1", no_share_decoder_input_output_embed=no) for no in (True, False)
    )
    with pytest.raises(
        UserError, match=r"output_projection.weight are one matrix .*--no-share-decoder-input"
    ):
        tied.load_state_dict(untied.state_dict())
    untied.load_state_dict(tied.state_dict())
    tied.load_state_dict(untied.state_dict())  # equal now
    encoder = build_roberta("roberta_linear", untie_weights_roberta=True)
    with pytest.raises(UserError, match=r"lm_head.weight .* differ .*--untie-weights-roberta"):
        build_roberta("roberta_linear").load_state_dict(encoder.state_dict())


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_heads_with_spectral_norm_are_loaded(from_checkpoint):
    options = {"spectral_norm_classification_head": True, "load_checkpoint_heads": from_checkpoint}
    model, other = (build_roberta("roberta_linear", **options) for _ in range(2))
    model.register_classification_head("task", num_classes=3)
    if not from_checkpoint:
        other.register_classification_head("task", num_classes=3)
    other.load_state_dict(model.state_dict())
    words = sentences([7, 12])
    scores = [one.eval()(words, classification_head_name="task")[0] for one in (model, other)]
    assert torch.equal(*scores)


def test_only_the_data_of_long_range_arena_decide_what_is_left_open():
    def check(**more):
        saved, given = ({"attention_backend": "auto", "glu_dim": size, **more} for size in (512, None))
        groups = [{"model": Namespace(**model), "task": Namespace()} for model in (saved, given)]
        check_same_settings("x.pt", *groups, resumes=True)

    check(classifier_dim=0)
    with pytest.raises(UserError, match="glu_dim is 512, not None"):
        check()


RUN = (
    "data --task language_modeling --decoder-layers 2 --decoder-embed-dim 16 --decoder-attention-heads 2 "
    "--tokens-per-sample 32 --batch-size 8 --optimizer adam --lr 0.01 --cpu --seed 3 --max-update 4 "
    "--lr-scheduler inverse_sqrt --warmup-updates 2"
)


@cache
def settings_of(flags: str) -> dict:
    parser = options.get_training_parser()
    read = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, f"{RUN} {flags}".split()))
    return OmegaConf.to_container(read, resolve=True, enum_to_str=True)


CHANGES = [
    ("--max-update 9 --max-epoch 3 --num-workers 3 --log-interval 5 --save-interval-updates 3", ""),
    ("--batch-size 4 --update-freq 2", ""),
    ("--batch-size 4 --distributed-world-size 2 --distributed-no-spawn", ""),
    ("--optimizer adamw_fused --adam-betas (0.9,0.999)", ""),
    ("--weight-decay 0.1 --optimizer-overrides {'weight_decay':0.1}", ""),
    ("--lr 0.5 --reset-lr-scheduler", ""),
    ("--lr 0.5 --seed 9 --allow-changed lr,seed", ""),
    ("--lr 0.5", "lr"),
    ("--seed 9", "seed"),
    ("--batch-size 4", "batch_size"),
    ("--update-freq 2", "batch_size"),
    ("--max-tokens 64", "max_tokens"),
    ("--weight-decay 0.1 --clip-norm 1", "clip_norm,weight_decay"),
    ("--warmup-updates 3", "warmup_updates"),
    ("--optimizer sgd", "optimizer"),
    ("--bf16 --store-ema", "bf16,store_ema"),
    ("--train-subset valid", "train_subset"),
    ("--dropout 0.3", "dropout"),
]
CHANGES_OF_RUNS = [("transnormer_t1", *change) for change in CHANGES]
CHANGES_OF_RUNS += [
    ("transformer_lm", *change) for change in CHANGES if change[1] in ("batch_size", "dropout")
]


@pytest.mark.parametrize(("arch", "flags", "changed"), CHANGES_OF_RUNS)
def test_what_may_change_when_a_run_resumes(arch, flags, changed):
    saved, given = (settings_of(f"--arch {arch} {words}") for words in ("", flags))
    with pytest.raises(UserError, match=f"--allow-changed {changed}$") if changed else nullcontext():
        check_same_run("run", saved, given)


@pytest.mark.parametrize("name", ["silu", "elu", "gelu", "gelu_accurate"])
def test_activations_of_an_encoders_heads(name):
    """fairseq's and ours; the feed-forward network has one of its own."""
    model = build_roberta("roberta_linear", activation_fn=name, encoder_ffn_activation="gelu")
    model.args.pooler_activation_fn, model.args.pooler_dropout = name, 0.25
    model.register_classification_head("task", num_classes=2)
    model.eval()
    assert torch.isfinite(model(sentences([9]))[0]).all()
    features, _ = model(sentences([9]), features_only=True, classification_head_name="task")
    assert model.classification_heads["task"].dropout.p == 0.25
    head, states = model.classification_heads["task"], model(sentences([9]), features_only=True)[0]
    assert torch.equal(features, head.out_proj(head_activation(name)(head.dense(states[:, 0]))))
    with pytest.raises(UserError, match="no classification head 'tsk', but task; name one of"):
        model(sentences([9]), features_only=True, classification_head_name="tsk")
    with pytest.raises(UserError, match="unknown activation 'swoosh'"):
        build_roberta("roberta_linear", activation_fn="swoosh", encoder_ffn_activation="gelu")
