"""A model of the benchmark's size fits real ListOps examples."""

import csv
import io
import tarfile

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.build import build_model
from tests.helpers.lra import lra_task

LENGTH = 24  # only the first symbols, so that it takes seconds; they tell the examples apart
SYMBOLS = {symbol: 4 + i for i, symbol in enumerate([*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"])}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_it_fits_400_listops_examples(shared_dir):
    with tarfile.open(shared_dir / "data/lra/listops-1000_sample.tar.gz") as archive:
        text = io.TextIOWrapper(archive.extractfile("listops-1000/basic_train.tsv"), newline="")
        examples = list(csv.DictReader(text, delimiter="\t"))[:400]
    rows = [[SYMBOLS[word] for word in e["Source"].split() if word in SYMBOLS] for e in examples]
    tokens = torch.tensor([row[:LENGTH] for row in rows])
    targets, lengths = torch.tensor([int(e["Target"]) for e in examples]), torch.full((400,), LENGTH)
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "embedding_std": 1.0}
    model = build_model("lra_skyformer", lra_task("listops", length=LENGTH), **quiet).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(60):
        for batch in torch.randperm(400).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(tokens[batch], lengths[batch]), targets[batch]).backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
    accuracy = (model.eval()(tokens, lengths).argmax(1) == targets).float().mean()
    assert accuracy > 0.97
