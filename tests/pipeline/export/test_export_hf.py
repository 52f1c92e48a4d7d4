"""export_hf.sh on checkpoints that training wrote."""

import json

import pytest
import torch

from pipeline.export import export_hf
from pipeline.export.exported import load_source
from tests.helpers import lm

CHECKPOINT = "checkpoint_last.pt"


@pytest.mark.slow
def test_language_model_and_encoder(call, transformers_answers, trained, pretrained, tmp_path, capsys):
    tokens = lm.tokens(2, 24, words=20)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    asked = {"tokens": tokens, "mask": everywhere}
    questions = {
        "lm": {**asked, "prompts": tokens, "prompt_mask": everywhere, "count": 2},
        "encoder": asked,
    }
    expected = {}
    for name, run in (("lm", trained), ("encoder", pretrained)):
        call(export_hf, run / CHECKPOINT, tmp_path / name)
        call(export_hf, run / CHECKPOINT, tmp_path / name)  # once more, in place
        with torch.no_grad():
            expected[name] = load_source(run / CHECKPOINT).model(tokens)[0]
    said = capsys.readouterr().out
    assert "AutoModelForCausalLM.from_pretrained(" in said and "AutoModelForMaskedLM.from_pretrained(" in said
    assert not list(tmp_path.rglob("*.part"))
    answers = transformers_answers(tmp_path, questions)
    for name, logits in expected.items():
        torch.testing.assert_close(answers[name]["logits"], logits, rtol=0, atol=1e-5)


def test_another_model_does_not_overwrite(call, refused, trained, tmp_path):
    out = tmp_path / "out"
    call(export_hf, trained / CHECKPOINT, out)
    assert json.loads((out / "config.json").read_text())["architectures"] == ["LinearAttentionForCausalLM"]
    before = (out / "config.json").read_bytes()
    other = trained / "another.pt"
    other.write_bytes((trained / CHECKPOINT).read_bytes() + b" ")
    sentence = refused(export_hf, other, out)
    other.unlink()
    assert f"holds the export of {trained / CHECKPOINT}, not the export of {other}" in sentence
    assert "DIR" in sentence and "fingerprint" not in sentence
    assert (out / "config.json").read_bytes() == before
