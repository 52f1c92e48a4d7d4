"""What nvcc makes of the CUDA kernels, executed by an interpreter: it gets the definition's results without a
race, in whatever order warps run."""

import pytest
import torch

from tests.helpers.definition import assert_exact_enough, draw
from tests.operator.ptx.launches import with_instruction
from tests.operator.ptx.parser import Instruction

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES = [
    ("90a", BF16, True, (1, 1, 70, 64, 64)),
    ("90a", BF16, False, (1, 1, 1100, 16, 16)),  # three segments, which pass their states on
    ("90a", F16, True, (1, 2, 70, 16, 9)),
    ("90a", F16, False, (1, 1, 40, 20, 32)),
    ("90a", F32, True, (1, 1, 40, 20, 32)),
    ("90a", F32, False, (1, 2, 33, 5, 7)),
    ("75", F16, True, (1, 2, 70, 16, 9)),
    ("75", BF16, True, (1, 1, 40, 16, 16)),  # products of bfloat16 by shuffles
    ("90a", BF16, True, (1, 1, 40, 256, 256)),  # two blocks forward, six backward
]
WIDE = (1, 1, 70, 64, 64)
DECAYED = [
    (BF16, True, (1, 1, 70, 64, 64)),
    (F32, False, (1, 1, 40, 20, 32)),
    (F16, True, (1, 1, 1100, 16, 9)),
]


def check_machines(machines):
    """Nothing raced, and no instruction of a whole warp was executed by a part of it."""
    assert set(machines) == {"forward", "backward"}
    for machine in machines.values():
        assert not machine.races.found and not machine.partial


@pytest.mark.parametrize(
    ("arch", "dtype", "normalize", "shape"),
    CASES,
    ids=lambda x: str(x).removeprefix("torch.") if not isinstance(x, tuple) else "N{2}-D{3}-M{4}".format(*x),
)
def test_results(interpreter, arch, dtype, normalize, shape):
    given = draw(shape, dtype, normalize)
    found, machines = interpreter.run(given, normalize, arch)
    check_machines(machines)
    blocks = 3 if shape[2] > 1024 else -(-shape[4] // 128)
    assert machines["forward"].blocks == shape[0] * shape[1] * blocks
    assert_exact_enough(found, given, normalize, shape)


@pytest.mark.parametrize(("dtype", "normalize", "shape"), DECAYED, ids=str)
def test_decays(interpreter, dtype, normalize, shape):
    """Decays, two of which hide all earlier positions."""
    given, decay = draw(shape, dtype, normalize), torch.rand(shape[:3]) / 2 + 0.5
    decay[..., [5, 33]] = 0.0
    found, machines = interpreter.run(given, normalize, decay=decay)
    check_machines(machines)
    assert_exact_enough(found, given, normalize, shape, log_decay=decay.double().log())


@pytest.mark.parametrize(
    ("dtype", "normalize", "shape", "decays", "bounds"),
    [
        (BF16, False, (2, 2, 40, 16, 24), None, None),
        (F16, True, (1, 2, 70, 16, 9), "positions", None),
        (F32, True, (1, 1, 40, 20, 32), "heads", None),
        (F16, True, (1, 2, 70, 16, 9), "positions", [0, 0, 1, 38, 70]),
    ],
    ids=str,
)
def test_heads_that_share_keys(interpreter, dtype, normalize, shape, decays, bounds):
    """Three of q for one of k, its state and its decays; with a normaliser the caller scales."""
    scale = 1.0 if normalize else 0.5
    given = list(draw(shape, dtype, normalize, strides="projected", group=3))
    if bounds is not None:
        given[3], given[5] = draw((len(bounds) - 1, shape[1], 1, *shape[3:]), dtype, normalize)[3::2]
    decay = log_decay = None
    if decays is not None:
        decay = torch.rand(shape[1] if decays == "heads" else shape[:3]) / 2 + 0.5
        log_decay = (decay[:, None] if decay.dim() == 1 else decay).expand(shape[:3]).double().log()
    packed = None if bounds is None else torch.tensor(bounds, dtype=torch.int32)
    found, machines = interpreter.run(given, normalize, decay=decay, bounds=packed, scale=scale)
    check_machines(machines)
    assert_exact_enough(found, given, normalize, shape, bounds, log_decay, scale)


@pytest.mark.parametrize("normalize", [False, True], ids=["plain", "normalize"])
def test_packed_sequences(interpreter, normalize):
    bounds = torch.tensor([0, 0, 1, 38, 38, 70], dtype=torch.int32)
    q, k, v, _, grad, _ = draw((1, 2, 70, 16, 9), F16, normalize)
    _, _, _, states, _, grad_states = draw((5, 2, 1, 16, 9), F16, normalize)
    given = (q, k, v, states, grad, grad_states)
    found, machines = interpreter.run(given, normalize, bounds=bounds)
    check_machines(machines)
    assert machines["backward"].blocks == 10
    assert_exact_enough(found, given, normalize, (1, 2, 70, 16, 9), bounds.tolist())


def test_the_order_of_warps_changes_no_bit(interpreter):
    given = draw(WIDE, BF16, True)
    runs = [interpreter.run(given, True, order=order, seed=5) for order in ("lowest", "highest")]
    for _, machines in runs:
        check_machines(machines)
    for x, y in zip(runs[0][0], runs[1][0], strict=True):
        assert torch.equal(x, y)


def with_infinities():
    """In v and grad_out, which the passes take out of a chunk and put back."""
    given = list(draw(WIDE, BF16, True))
    for which, row in ((2, 40), (4, 30)):
        given[which][0, 0, row, 5] = torch.inf
    return given


def test_rows_that_are_not_finite(interpreter):
    given = with_infinities()
    found, machines = interpreter.run(given, True, seed=2)
    check_machines(machines)
    out, _, grad_q, _, grad_v, _ = (x[0, 0] for x in found)
    assert out[:40].isfinite().all() and not out[40:, 5].isfinite().any()
    assert grad_v[31:].isfinite().all() and not grad_v[:31, 5].isfinite().any()
    untouched = (torch.arange(70) < 40) & (torch.arange(70) != 30)
    assert grad_q[untouched].isfinite().all() and not grad_q[~untouched].isfinite().any()


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_stores_to_rows_that_are_not_finite_wait_for_the_warp(interpreter, name):
    """Without the barriers that begin `clean` and `make_dirty` they race with other lanes' loads."""

    def edit(which, module):
        for place, (mark, barrier) in enumerate(
            zip(module.instructions, module.instructions[1:], strict=False)
        ):
            if which == name and mark.name == "pmevent" and barrier.parts[:2] == ("bar", "warp"):
                module = with_instruction(module, place + 1, Instruction(("membar", "gl"), ()))
        return module

    _, machines = interpreter.run(
        with_infinities(), True, seed=2, passes=(name,), edit=edit, stop_at_a_race=True
    )
    assert any("by another lane" in x for x in machines[name].races.found)
