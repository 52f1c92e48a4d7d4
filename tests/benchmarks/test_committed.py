"""The committed tables of the benchmarks are those that their records give."""

import importlib

import pytest

from pipeline.files import MEASURED, read_json

TABLES = {
    **{name: f"{name}_cpu" for name in ("attention_cost", "image_cost", "lm_cost", "loss_cost", "lra_speed")},
    **{name: f"{name}_cpu" for name in ("packed_cost", "roberta_cost", "speech_cost")},
    "cuda_resources": "cuda/cuda_resources",
    "model_parts_cost": "model_parts/model_parts_cost",
    "operator_cost": "operator_cpu/operator_cost",
}


@pytest.mark.parametrize(("name", "path"), TABLES.items())
def test_tables_are_those_of_the_record(name, path):
    markdown = importlib.import_module(f"benchmarks.{name}").markdown
    record = MEASURED / f"{path}.json"
    assert markdown(read_json(record)) == record.with_suffix(".md").read_text(encoding="utf-8")
