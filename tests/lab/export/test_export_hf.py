"""export_hf.sh on checkpoints that training wrote."""

import json
import re
import shutil

import pytest
import torch

from lab.export import export_hf
from lab.export.exported import WEIGHTS, load_source
from tests.helpers import lm

CHECKPOINT = "checkpoint_last.pt"
LOADED = "from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer\n"


@pytest.mark.slow
def test_language_model_and_encoder(
    call, with_transformers, transformers_answers, trained, pretrained, tmp_path, capsys
):
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
    (tmp_path / "code.py").write_text(LOADED + "\n".join(re.findall(r"^  (Auto.*)$", said, re.MULTILINE)))
    with_transformers("run_code", tmp_path)
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
    (out / WEIGHTS).write_bytes(b"trained further")
    sentence = refused(export_hf, trained / CHECKPOINT, out)
    assert "model.safetensors has changed since it was exported; move it away" in sentence
    assert (out / WEIGHTS).read_bytes() == b"trained further"


@pytest.mark.slow
def test_the_code_of_the_page(call, root, with_transformers, trained, tmp_path):
    call(export_hf, trained / CHECKPOINT, tmp_path / "exported" / "t1")
    page = (root / "docs" / "export.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert "from_pretrained" in code
    (tmp_path / "code.py").write_text(code)
    with_transformers("run_code", tmp_path)


def test_where_the_dictionary_is_looked_for(call, refused, trained, corpus, encoder_corpus, tmp_path):
    alone = tmp_path / "alone" / "a.pt"
    alone.parent.mkdir()
    shutil.copyfile(trained / CHECKPOINT, alone)
    call(export_hf, alone, tmp_path / "found")  # in the data that the checkpoint names
    words = json.loads((tmp_path / "found" / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(words) == len((corpus / "dict.txt").read_text().splitlines()) + 4
    sentence = refused(export_hf, alone, tmp_path / "other", "--data", encoder_corpus)
    assert "entries, but" in sentence and "name the prepared folder of its training with --data" in sentence
    state = torch.load(alone, weights_only=True)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, alone)
    sentence = refused(export_hf, alone, tmp_path / "other")
    assert f"there is no dict.txt beside {alone} or in its training data, {tmp_path / 'gone'}" in sentence
    call(export_hf, alone, tmp_path / "other", "--data", corpus)
    assert (tmp_path / "other" / "tokenizer.json").read_bytes() == (
        tmp_path / "found" / "tokenizer.json"
    ).read_bytes()


def test_an_attention_of_ones_own(own_attention, call, config, corpus, tmp_path):
    run = tmp_path / "run"
    words = ["--save-dir", run, "--gpus", 0, "--max-update", 2, "--decoder-attention", "mine"]
    call("scripts/train_lm.sh", config, corpus, *words)
    call(export_hf, run / "checkpoint_last.pt", tmp_path / "exported")
    settings = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert settings["plan"] == [["mine"]] * 2 and settings["attention_options"] == {"mine": {"power": 2.0}}
    code = (tmp_path / "exported" / "attention_linear_attention.py").read_text()
    assert code.endswith('ATTENTIONS["mine"] = MineAttention\n')
