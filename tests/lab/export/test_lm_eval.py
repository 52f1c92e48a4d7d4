"""lm-eval with an exported model gives the perplexity of eval_ppl.sh."""

import json
import os
import subprocess

import pytest

from lab.data.prepared import open_prepared
from lab.export.export_hf import export
from lab.export.lm_eval import text_perplexity
from lab.files import ROOT
from lab.measure.perplexity import evaluate
from lab.run.checkpoint import read_language_model
from tests.helpers.prepared import write_corpus

LM_EVAL = ROOT / ".venv-lm-eval" / "bin" / "lm_eval"
LONGEST = 32  # tokens_per_sample of the training


def test_words_are_counted_as_data_prep_counts_them():
    assert text_perplexity.score({"words": 7}, [-3.5]) == {"word_perplexity": (-3.5, 7)}
    assert text_perplexity.document(["a  b\n", "\n", "c\n"]) == ("a b</s></s>c</s>", 6)


@pytest.mark.slow
@pytest.mark.skipif(not LM_EVAL.is_file(), reason="there is no .venv-lm-eval (docs/export.md)")
def test_word_perplexity(trained, corpus, tmp_path):
    data = open_prepared(corpus, ("test",))
    length = max(n for n in range(1, LONGEST + 1) if data.tokens("test") % n == 0)
    checkpoint = read_language_model(trained / "checkpoint_last.pt")
    ours = evaluate(checkpoint, data, "test", extra=["--tokens-per-sample", str(length)])
    export(trained / "checkpoint_last.pt", tmp_path / "exported", None)
    write_corpus(tmp_path)
    model = f"pretrained={tmp_path / 'exported'},trust_remote_code=True,dtype=float32"
    command = [LM_EVAL, "run", "--model", "hf", "--device", "cpu", "--batch_size", "64"]
    command += ["--model_args", f"{model},max_length={length},prefix_token_id=2"]
    command += ["--tasks", "text_perplexity", "--include_path", ROOT / "lab" / "export" / "lm_eval"]
    command += ["--metadata", json.dumps({"text": str(tmp_path / "test.txt")})]
    command += ["--output_path", tmp_path / "result"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        command, env={**os.environ, **offline}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = (tmp_path / "result").rglob("results*.json")
    theirs = json.loads(path.read_text())["results"]["text_perplexity"]["word_perplexity,none"]
    assert abs(theirs - ours["perplexity_per_word"]) < 1e-4
