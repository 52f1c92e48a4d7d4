"""RoBERTa weights of transformers as checkpoints: the same logits, other encoders, and bad input."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab.export import import_hf
from lab.export.import_hf import EMBEDDING, POSITIONS, as_settings, renamed
from lab.run.checkpoint import ENCODER, load_encoder, read_dictionary, read_encoder
from tests.helpers.evil import Evil
from tests.helpers.tiny import train_run

WIDTH, POSITIONS_THERE = 16, 66
CONFIG = {
    "model_type": "roberta",
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": POSITIONS_THERE,
    "layer_norm_eps": 1e-5,
}


def random_weights(words):
    """The names and shapes of roberta-base, small."""
    generator = torch.Generator().manual_seed(0)
    base = {
        "roberta.embeddings.word_embeddings.weight": (words, WIDTH),
        "roberta.embeddings.position_embeddings.weight": (POSITIONS_THERE, WIDTH),
        "roberta.embeddings.token_type_embeddings.weight": (1, WIDTH),
        "roberta.pooler.dense.weight": (WIDTH, WIDTH),
        "lm_head.bias": (words,),
        "lm_head.dense.weight": (WIDTH, WIDTH),
        "lm_head.dense.bias": (WIDTH,),
    }
    norms = ["roberta.embeddings.LayerNorm", "lm_head.layer_norm"]
    for layer in range(2):
        prefix = f"roberta.encoder.layer.{layer}"
        norms += [f"{prefix}.attention.output.LayerNorm", f"{prefix}.output.LayerNorm"]
        parts = (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        )
        shapes = dict.fromkeys(parts, (WIDTH, WIDTH))
        shapes |= {"intermediate.dense": (20, WIDTH), "output.dense": (WIDTH, 20)}
        for part, shape in shapes.items():
            base |= {f"{prefix}.{part}.weight": shape, f"{prefix}.{part}.bias": shape[:1]}
    for norm in norms:
        base |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in base.items()}


@pytest.fixture(scope="module")
def words(encoder_corpus):
    return len(read_dictionary(encoder_corpus))


@pytest.fixture
def hf(tmp_path, words):
    """A folder as transformers writes it, without a vocabulary."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(random_weights(words), folder / "model.safetensors")
    return folder


def imported(call, hf, data, out, *options):
    call(import_hf, hf, data, out, *options)
    return torch.load(out / "imported.pt", weights_only=True)["model"]


@pytest.mark.slow
def test_softmax_has_the_logits_of_transformers(with_transformers, call, encoder_corpus, tmp_path, words):
    with_transformers("write_roberta", tmp_path, words)
    call(import_hf, tmp_path, encoder_corpus, tmp_path / "out")
    answers = torch.load(tmp_path / "answers.pt", weights_only=True)
    model = load_encoder(read_encoder(tmp_path / "out" / "imported.pt"), read_dictionary(encoder_corpus))
    with torch.no_grad():
        logits = model(answers["tokens"])[0]
    real = answers["tokens"] != 1
    assert logits[real].std() > 0.5
    torch.testing.assert_close(logits[real], answers["logits"][real], atol=1e-5, rtol=0)


def test_all_of_softmax_is_taken(call, hf, encoder_corpus, tmp_path, capsys):
    ours = imported(call, hf, encoder_corpus, tmp_path / "out")
    told = capsys.readouterr().out
    assert (
        "at random: nothing" in told
        and "left out, not part of an encoder: roberta.pooler.dense.weight" in told
    )
    theirs = load_file(hf / "model.safetensors")
    assert torch.equal(ours[EMBEDDING], theirs["roberta.embeddings.word_embeddings.weight"])
    types = theirs["roberta.embeddings.token_type_embeddings.weight"]
    assert torch.equal(ours[POSITIONS], theirs["roberta.embeddings.position_embeddings.weight"] + types)
    query = theirs["roberta.encoder.layer.1.attention.self.query.weight"]
    assert torch.equal(ours[f"{ENCODER}layers.1.self_attn.q_proj.weight"], query)
    assert (tmp_path / "out" / "sentencepiece.bpe.model").is_file()


@pytest.mark.parametrize(
    ("arch", "random"),
    [
        ("roberta_lln", "nothing"),
        ("roberta_lln_diag", "nothing"),
        ("roberta_linear", "nothing"),
        ("roberta_transnormer_t1", "layers.*.glu.l1.weight (2)"),
    ],
)
def test_what_other_encoders_take(call, hf, encoder_corpus, tmp_path, capsys, arch, random):
    ours = imported(call, hf, encoder_corpus, tmp_path / "out", "--arch", arch)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("at random: "))
    assert random in line and "embed_tokens" not in line and "q_proj" not in line
    theirs = load_file(hf / "model.safetensors")
    assert torch.equal(ours[EMBEDDING], theirs["roberta.embeddings.word_embeddings.weight"])
    key = theirs["roberta.encoder.layer.0.attention.self.key.weight"]
    assert torch.equal(ours[f"{ENCODER}layers.0.self_attn.k_proj.weight"], key)


def test_embeddings_only_and_flags_of_the_architecture(call, hf, encoder_corpus, tmp_path, capsys):
    options = ("--arch", "roberta_lln", "--embeddings-only", "--encoder-layers", 1)
    ours = imported(call, hf, encoder_corpus, tmp_path / "out", *options)
    assert "taken: embed_tokens.weight, embed_positions.weight\n" in capsys.readouterr().out
    theirs = load_file(hf / "model.safetensors")
    assert not any("layers.1." in name for name in ours)
    key = theirs["roberta.encoder.layer.0.attention.self.key.weight"]
    assert not torch.equal(ours[f"{ENCODER}layers.0.self_attn.k_proj.weight"], key)


def test_rows_follow_the_vocabulary(call, hf, encoder_corpus, tmp_path, capsys, words):
    """In vocab.json the tokens have another order than in dict.txt, and one is missing."""
    symbols = read_dictionary(encoder_corpus).symbols
    order = torch.randperm(words, generator=torch.Generator().manual_seed(1)).tolist()
    vocabulary = dict(zip(symbols, order, strict=True))
    del vocabulary[symbols[-2]]
    (hf / "vocab.json").write_text(json.dumps(vocabulary))
    ours = imported(call, hf, encoder_corpus, tmp_path / "out")
    assert "1 entries of the dictionary are not in the vocabulary" in capsys.readouterr().out
    theirs = load_file(hf / "model.safetensors")
    order[-2] = vocabulary["<unk>"]
    assert torch.equal(ours[EMBEDDING], theirs["roberta.embeddings.word_embeddings.weight"][order])
    assert torch.equal(ours["encoder.lm_head.bias"], theirs["lm_head.bias"][order])


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--finetune-from-model", "--restore-file"])
def test_training_starts_from_it(call, hf, encoder_corpus, encoder_configs, tmp_path, flag):
    """With a learning rate that rounds to zero, training saves the imported weights."""
    ours = imported(call, hf, encoder_corpus, tmp_path / "out", "--arch", "roberta_lln_diag")
    flags = [flag, tmp_path / "out" / "imported.pt", "--encoder-ffn-embed-dim", 20, "--tokens-per-sample", 64]
    flags += ["--max-update", 1, "--lr", 1e-50, "--weight-decay", 0]
    config = encoder_configs / "roberta_lln_diag.yaml"
    train_run(config, encoder_corpus, tmp_path / "run", flags)
    after = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=True)
    assert after["optimizer_history"][-1]["num_updates"] == 1
    for name, tensor in ours.items():
        assert ".scale." in name or torch.equal(after["model"][name], tensor), name


def test_bad_input(refused, hf, encoder_corpus, tmp_path):
    out = tmp_path / "out"
    words = [hf, encoder_corpus, out]
    assert "there is no encoder 'roberta_lnl'; did you mean roberta_lln?" in refused(
        import_hf, *words, "--arch", "roberta_lnl"
    )
    assert "the encoder's width differs" in refused(import_hf, *words, "--encoder-embed-dim", 32)
    assert "dict.txt is missing" in refused(import_hf, hf, tmp_path, out)
    assert "there is no folder" in refused(import_hf, tmp_path / "none", encoder_corpus, out)
    (hf / "vocab.json").write_text('{"<unk>": 3, "b": 4}')
    assert "has rows for 1 of the" in refused(import_hf, *words)
    (hf / "vocab.json").unlink()
    for content, sentence in (
        ("[]", "tokenizer.json holds no JSON object"),
        ('{"model": []}', "tokenizer.json is not a tokeniser's; get it again"),
        ('{"model": {"vocab": {}}, "added_tokens": [{}]}', "tokenizer.json is not a tokeniser's"),
    ):
        (hf / "tokenizer.json").write_text(content)
        assert sentence in refused(import_hf, *words)
    (hf / "tokenizer.json").unlink()
    (hf / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    assert "is damaged" in refused(import_hf, *words)
    (hf / "model.safetensors").unlink()
    assert "holds neither" in refused(import_hf, *words)
    for key, value in (("model_type", "bert"), ("layer_norm_eps", 1e-12), ("hidden_act", "gelu_new")):
        (hf / "config.json").write_text(json.dumps({**CONFIG, key: value}))
        assert f"has {key} {value!r}; only" in refused(import_hf, *words)
    for content, sentence in (
        ("[]", "config.json holds no JSON object"),
        (json.dumps({**CONFIG, "max_position_embeddings": "66"}), "has max_position_embeddings '66', not a"),
        (json.dumps({**CONFIG}).replace('"hidden_size"', '"width"'), "lacks hidden_size"),
    ):
        (hf / "config.json").write_text(content)
        assert sentence in refused(import_hf, *words)
    assert not out.exists()


def test_pickled_weights_are_read_by_the_safe_loader_only(call, refused, hf, encoder_corpus, tmp_path):
    weights = load_file(hf / "model.safetensors")
    (hf / "model.safetensors").unlink()
    torch.save(weights, hf / "pytorch_model.bin")
    ours = imported(call, hf, encoder_corpus, tmp_path / "out")
    assert torch.equal(ours[EMBEDDING], weights["roberta.embeddings.word_embeddings.weight"])
    torch.save({**weights, "x": Evil(tmp_path / "trace")}, hf / "pytorch_model.bin")
    assert "nothing in it was run" in refused(import_hf, hf, encoder_corpus, tmp_path / "other")
    assert not (tmp_path / "trace").exists() and not (tmp_path / "other").exists()


def test_positions_by_hand():
    """The first two rows are not positions; the only token type is added to every position."""
    flags = as_settings(CONFIG)
    assert flags[flags.index("--max-positions") + 1] == flags[flags.index("--tokens-per-sample") + 1] == "64"
    assert flags[flags.index("--encoder-ffn-embed-dim") + 1] == "20"
    weights = {
        "roberta.embeddings.word_embeddings.weight": torch.ones(3, 2),
        "roberta.embeddings.position_embeddings.weight": torch.ones(4, 2),
        "roberta.embeddings.token_type_embeddings.weight": torch.tensor([[0.5, 2.0]]),
        "roberta.pooler.dense.weight": torch.ones(2, 2),
    }
    found, others = renamed(weights)
    assert found[POSITIONS].tolist() == [[1.5, 3.0]] * 4 and found[EMBEDDING].eq(1).all()
    assert others == ["roberta.pooler.dense.weight"]
