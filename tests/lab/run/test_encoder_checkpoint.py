"""Encoders' checkpoints: of this project, of fairseq's own RoBERTa, of older names; and the hub interface."""

import re
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

from lab.commands import finetune_glue
from lab.data.tokenization import TextEncoder, encode_sentences
from lab.errors import UserError
from lab.measure.glue import HEAD, predict
from lab.run.checkpoint import (
    architecture_of,
    encoder_flags,
    load_encoder,
    read_dictionary,
    read_encoder,
)
from tests.helpers.roberta import task as task_of
from user_dir.models import LinearAttentionRoberta

SENTENCES = ("The cat sat .", "The dog saw the house .")


@pytest.fixture(scope="module")
def hub(pretrained):
    return LinearAttentionRoberta.from_pretrained(str(pretrained), "checkpoint_last.pt").eval()


@pytest.fixture
def fairseqs(encoder_corpus, tmp_path):
    """A checkpoint of fairseq's own `roberta_base`, tiny, as its trainer writes it, and its model."""
    dictionary = read_dictionary(encoder_corpus)
    args = Namespace(
        arch="roberta_base",
        task="masked_lm",
        data=str(encoder_corpus),
        tokens_per_sample=32,
        criterion="masked_lm",
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=24,
        encoder_attention_heads=2,
        max_positions=32,
        dropout=0.1,
        sample_break_mode="none",
    )
    ARCH_CONFIG_REGISTRY["roberta_base"](args)
    stub = task_of(10)
    stub.source_dictionary = stub.target_dictionary = dictionary
    model = RobertaModel.build_model(args, stub).eval()
    path = tmp_path / "theirs" / "checkpoint_last.pt"
    path.parent.mkdir()
    state = {"args": args, "cfg": None, "model": model.state_dict(), "extra_state": {}}
    history = [{"criterion_name": "MaskedLmLoss", "best_loss": 1.0, "num_updates": 7}]
    torch.save({**state, "optimizer_history": history}, path)
    for name in ("dict.txt", "sentencepiece.bpe.model"):
        shutil.copy(encoder_corpus / name, path.parent)
    return path, model


def tokens_of(folder):
    dictionary = read_dictionary(folder)
    return encode_sentences(TextEncoder.from_folder(folder), dictionary, SENTENCES), dictionary


def test_hub_encodes_and_extracts_features(hub, pretrained):
    """Tokens as in prediction; features of the model that the checkpoint holds."""
    expected, dictionary = tokens_of(pretrained)
    tokens = hub.encode(*SENTENCES)
    assert tokens.tolist() == expected.tolist()
    assert hub.decode(tokens) == list(SENTENCES)
    model = load_encoder(read_encoder(pretrained / "checkpoint_last.pt"), dictionary)
    with torch.no_grad():
        features = hub.extract_features(tokens)
        states = hub.extract_features(tokens, return_all_hiddens=True)
        assert torch.equal(features, model(tokens[None], features_only=True)[0])
    assert features.shape == (1, len(tokens), 16)
    assert len(states) == 3 and torch.equal(states[-1], features)
    with pytest.raises(ValueError, match="tokens exceeds maximum length: 33 > 32"):
        hub.extract_features(torch.full((33,), 5))


def test_hub_fills_the_mask(hub, pretrained):
    """With the token that the model finds most likely there."""
    filled = hub.fill_mask("The cat <mask> .", topk=8)
    dictionary = hub.task.source_dictionary
    tokens, _ = tokens_of(pretrained)
    tokens = torch.cat([tokens[:3], torch.tensor([dictionary.index("<mask>")]), tokens[4:6]])
    logits = load_encoder(read_encoder(pretrained / "checkpoint_last.pt"), dictionary)(tokens[None])[0][0, 3]
    likely = logits.softmax(0).topk(8).values.tolist()
    assert filled and all(re.fullmatch(r"The cat.* \.", text) for text, _, _ in filled)
    assert [value for _, value, _ in filled] == pytest.approx(likely[: len(filled)], rel=1e-4)


def test_hub_predicts_with_a_head(finetuned, glue):
    folder = finetuned / "RTE" / "0.01" / "seed1"
    hub = LinearAttentionRoberta.from_pretrained(
        str(folder), "checkpoint_best.pt", data_name_or_path=str(glue / "RTE")
    ).eval()
    tokens, dictionary = tokens_of(folder)
    model = load_encoder(read_encoder(folder / "checkpoint_best.pt"), dictionary)
    expected = torch.from_numpy(predict(model, [tokens], dictionary.pad()))
    with torch.no_grad():
        torch.testing.assert_close(hub.predict(HEAD, tokens, return_logits=True), expected)
        torch.testing.assert_close(hub.predict(HEAD, tokens), expected.log_softmax(-1))


def test_checkpoint_of_fairseqs_roberta(fairseqs):
    path, theirs = fairseqs
    encoder = read_encoder(path)
    assert (architecture_of(encoder), encoder.max_positions, encoder.updates) == ("roberta_softmax", 32, 7)
    tokens, dictionary = tokens_of(path.parent)
    with torch.no_grad():
        got, expected = load_encoder(encoder, dictionary)(tokens[None])[0], theirs(tokens[None])[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("old", [False, True], ids=["names of today", "older names"])
def test_fine_tuning_starts_from_fairseqs_roberta(call, fairseqs, glue, tmp_path, old):
    """Published checkpoints call the encoder "decoder" and its first norm "emb_layer_norm"."""
    path, theirs = fairseqs
    if old:
        state = torch.load(path, weights_only=True)
        state["model"] = {
            key.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): value
            for key, value in state["model"].items()
        }
        torch.save(state, path)
    words = [path, "--data", glue, "--out", tmp_path / "out", "--task", "RTE", "--max-update", 1]
    call(finetune_glue, *words, "--learning-rates", "1e-9", "--seeds", "1")
    tuned = read_encoder(tmp_path / "out" / "RTE" / "1e-09" / "seed1" / "checkpoint_best.pt")
    assert tuned.heads == {HEAD: 2} and tuned.max_positions == 32
    tokens, dictionary = tokens_of(path.parent)
    with torch.no_grad():
        features = load_encoder(tuned, dictionary)(tokens[None], features_only=True)[0]
        expected = theirs(tokens[None], features_only=True)[0]
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_checkpoint_in_the_layout_of_the_authors_fork(pretrained, encoder_corpus, tmp_path):
    """`args` instead of `cfg`, options of the fork, older names, entries of fairseq's that mean nothing."""
    state = torch.load(pretrained / "checkpoint_last.pt", weights_only=True)
    settings = {key: value for key, value in state["cfg"]["model"].items() if key != "_name"}
    args = Namespace(**settings, task="masked_lm", tokens_per_sample=32, encoder_attention_types=[2, 1])
    args.arch = "roberta_transnormer_t1"
    model = {key.replace("encoder.", "decoder.", 1): value for key, value in state["model"].items()}
    model["decoder.sentence_encoder.version"] = torch.tensor([3.0])
    model["decoder.sentence_encoder.embed_positions._float_tensor"] = torch.zeros(1)
    path = tmp_path / "fork.pt"
    torch.save({"args": args, "model": model, "optimizer_history": [], "extra_state": {}}, path)
    dictionary = read_dictionary(encoder_corpus)
    tokens, _ = tokens_of(encoder_corpus)
    with torch.no_grad():
        got, expected = (
            load_encoder(read_encoder(file), dictionary)(tokens[None])[0]
            for file in (path, pretrained / "checkpoint_last.pt")
        )
    assert torch.equal(got, expected)


def test_flags_build_the_model_again(pretrained):
    """Only settings that differ from the architecture's defaults."""
    words = encoder_flags(read_encoder(pretrained / "checkpoint_last.pt"))
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    assert pairs["--arch"] == "roberta_transnormer_t1"
    assert (pairs["--encoder-layers"], pairs["--encoder-embed-dim"]) == ("2", "16")
    assert "--dropout" not in pairs and "--max-positions" not in pairs


def test_vocabulary_of_another_size(pretrained, encoder_corpus):
    dictionary = read_dictionary(encoder_corpus)
    dictionary.add_symbol("more")
    with pytest.raises(UserError, match="belongs to another tokeniser"):
        load_encoder(read_encoder(pretrained / "checkpoint_last.pt"), dictionary)
