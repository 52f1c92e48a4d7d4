"""Linformer against arrays of public code, in its three forms."""

import pytest
import torch

from tests.helpers.golden import check_attend, check_run, load, relative, state
from user_dir.attention import build_attention


@pytest.mark.parametrize("length", [150, 128])
@pytest.mark.parametrize("run", ["full", "padded"])
def test_one_matrix_a_head_equals_public_code(golden_dir, length, run):
    arrays, place = load(golden_dir, "peers_linformer.npz"), f"L{length}"
    module = build_attention("linformer", 32, 4, causal=False, max_positions=length, rank=24)
    module.load_state_dict({"E": torch.tensor(arrays[f"{place}/E"])}, strict=False)
    padding = torch.arange(length) >= torch.tensor([[length], [100]]) if run == "padded" else None
    check_attend(module, arrays, place, f"{place}/{run}", padding)
    assert relative(module.E.grad, arrays[f"{place}/{run}/grad/E"]) < 5e-5


@pytest.mark.parametrize("length", [150, 128])
@pytest.mark.parametrize(("form", "projection"), [("fairseq", "separate"), ("fairseq_shared", "shared")])
def test_form_of_fairseq_equals_its_example(golden_dir, length, form, projection):
    """Its weights load under their names."""
    file = "peers_linformer.npz"
    module = build_attention(
        "linformer", 32, 4, causal=False, max_positions=160, rank=40, projection=projection
    )
    module.load_state_dict(state(load(golden_dir, file), f"{form}/state/"))
    check_run(module, golden_dir, file, f"{form}/L{length}/full")


def build(projection="heads", **options):
    options = {"max_positions": 32, "rank": 6, **options}
    return build_attention("linformer", 12, 2, causal=False, projection=projection, **options)


def test_the_matrix_is_a_parameter_that_trains_and_is_saved():
    module = build()
    module(torch.randn(20, 2, 12))[0].square().sum().backward()
    assert module.E.grad[:, :, :20].abs().min() > 0 and (module.E.grad[:, :, 20:] == 0).all()
    assert module.E.shape == (2, 6, 32) and "E" in module.state_dict()
    assert abs(module.E.std() - 0.02) < 0.005
