"""Exported graphs of ONNX, run by its own evaluator; of any batch and length."""

from functools import partial

import pytest
import torch

from causal_linear_attention import causal_linear_attention, causal_linear_attention_step

pytest.importorskip("onnxscript", reason="needs the packages onnx and onnxscript")
onnx = pytest.importorskip("onnx.reference", reason="needs the packages onnx and onnxscript")


class Call(torch.nn.Module):
    def __init__(self, function, **options):
        super().__init__()
        self.call = partial(function, **options)

    def forward(self, *tensors):
        return self.call(*tensors)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"normalize": True, "return_state": True}], ids=["plain", "state"])
def test_sequences_of_any_length(options):
    module = Call(causal_linear_attention, **options)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("length")}
    given = torch.rand(3, 2, 2, 70, 4)
    program = torch.onnx.export(
        module, tuple(given), dynamo=True, verbose=False, dynamic_shapes=[(sizes,) * 3]
    )
    for batch, length in ((2, 70), (1, 200)):
        tensors = torch.rand(3, batch, 2, length, 4)
        check(program, module, tensors)


class Decayed(Call):
    def forward(self, log_decay, *tensors):
        return self.call(*tensors, log_decay=log_decay)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_decays_of_any_length():
    module = Decayed(causal_linear_attention, return_state=True)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("length")}

    def draw(batch, length):
        return -torch.rand(batch, 2, length), *torch.rand(3, batch, 2, length, 4)

    program = torch.onnx.export(
        *(module, draw(2, 70)), dynamo=True, verbose=False, dynamic_shapes=(sizes, (sizes,) * 3)
    )
    for batch, length in ((2, 70), (1, 200)):
        check(program, module, draw(batch, length))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("decays", [False, True], ids=["plain", "decays"])
def test_a_step(decays):
    module, given = Call(causal_linear_attention_step), (*torch.rand(3, 2, 2, 4), torch.rand(2, 2, 4, 4))
    if decays:
        module, given = Decayed(causal_linear_attention_step), (-torch.rand(2, 2), *given)
    check(torch.onnx.export(module, given, dynamo=True, verbose=False), module, given)


def check(program, module, tensors):
    evaluator = onnx.ReferenceEvaluator(program.model_proto)
    names = [x.name for x in program.model_proto.graph.input]
    found = evaluator.run(None, {name: x.numpy() for name, x in zip(names, tensors, strict=True)})
    expected = module(*tensors)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(x), y, rtol=1e-4, atol=1e-4)
