"""Measured runs as measure_lm.py writes them, with made-up figures."""

import json

import pytest


def fake_run(architecture: str, seed: int, perplexity: float) -> dict:
    figures = {
        "tokens": 300,
        "words": 200,
        "loss_nats_per_token": 3.0,
        "perplexity_per_token": 20.0,
        "perplexity_per_word": perplexity,
    }
    return {
        "experiment": "wikitext2",
        "architecture": architecture,
        "seed": seed,
        "fingerprint": "f" * 12,
        "parameters": 1_234_567,
        "updates": 900,
        "best_update": 600,
        "valid": figures,
        "test": {**figures, "perplexity_per_word": perplexity + 10},
        "tokens_per_second": 5432.0,
        "tokens_per_update": 2048.0,
        "peak_memory_bytes": 2**30,
        "train_seconds": 90.0,
        "curves": {
            "train": [[25 * i, 12 - i / 10] for i in range(1, 37)],
            "valid": [[300, 9.0], [600, 8.5], [900, 8.6]],
        },
        "processes": 1,
        "data": {
            "corpus": "wikitext-2",
            "tokenizer": "sentencepiece",
            "vocabulary": 4000,
            "splits": {"train": {"words": 2_000_000}},
        },
        "settings": {
            "model": {
                "decoder_layers": 4,
                "decoder_embed_dim": 192,
                "decoder_attention_heads": 4,
                "dropout": 0.0,
            },
            "task": {"tokens_per_sample": 256},
            "optimization": {"lr": [0.002], "clip_norm": 1.0},
            "lr_scheduler": {"_name": "cosine", "warmup_updates": 150},
        },
        "hardware": {"cpu": "a CPU", "cores": 2},
        "threads": 2,
        "versions": {"torch": "2.13.0"},
        "date": "2000-01-02",
        "commit": "abc",
    }


@pytest.fixture
def measured(tmp_path):
    """A folder with five runs: two seeds of T1, one of each other architecture."""
    folder = tmp_path / "measured"
    folder.mkdir()
    runs = [
        fake_run("linear_transformer_lm", 1, 340.0),
        fake_run("transnormer_t1", 2, 310.0),
        fake_run("transnormer_t1", 1, 300.0),
        fake_run("transformer_lm", 1, 290.0),
        fake_run("transnormer_t2", 1, 320.0),
    ]
    for run in runs:
        path = folder / f"{run['architecture']}-seed{run['seed']}.json"
        path.write_text(json.dumps(run), encoding="utf-8")
    return folder
