"""A new attention as CONTRIBUTING.md adds it: a file, a row and a choice of a study, and it is everywhere."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "user_dir",
    "conventions",
    "causal_linear_attention",
    "lab",
    "configs",
    "data-prep",
    "results/paper",
)
FILE = '''
"""The mean of the values so far."""

from .elu import EluAttention
from .registry import register_attention


@register_attention("mean")
class MeanAttention(EluAttention):
    """Every earlier position counts as much."""

    def features(self, q, k, positions):
        return q.new_ones(q.shape), k.new_ones(k.shape)
'''
ROW = """    Mechanism(
        "mean", "the mean of the values", "O(N d²)", "d × (d+1)", Method("Mean", "#123456", "mean_lm", "mean")
    ),
"""
CHECK = """
from lab.run.process import import_quickly
ARCH_MODEL_REGISTRY = import_quickly("fairseq.models").ARCH_MODEL_REGISTRY
import user_dir
from lab.methods import ATTENTIONS, LANGUAGE_MODELS
from lab.study.declaration import read_study
from lab.commands.make_results import mechanisms_section
from lab.study.cells import check_plan_words
from user_dir.models.layer_plan import parse_layer_plan

assert ARCH_MODEL_REGISTRY["mean_lm"].default_plan(2) == "mean*2" and "roberta_mean" in ARCH_MODEL_REGISTRY
assert parse_layer_plan("mean,norm", 2, "--decoder-attention", causal=True) == [("mean",), ("norm",)]
check_plan_words("mean*4", 4, "copy")
assert LANGUAGE_MODELS["mean_lm"].label == ATTENTIONS["mean"].label == "Mean"
assert read_study("copy").axes["method"].choices["mean"].label == "Mean"
assert "| `mean` | the mean of the values | yes |" in mechanisms_section()
"""


def replace(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.longest
def test_a_new_attention_is_everywhere_after_three_files(tmp_path):
    ignored = shutil.ignore_patterns("csrc")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    (tmp_path / "user_dir" / "attention" / "mean.py").write_text(FILE, encoding="utf-8")
    replace(tmp_path / "conventions" / "mechanisms.py", "    # Encoders only", ROW + "    # Encoders only")
    line = "  method:\n"
    replace(tmp_path / "configs" / "studies" / "copy.yaml", line, f"{line}    mean: {{plan: mean}}\n")
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
