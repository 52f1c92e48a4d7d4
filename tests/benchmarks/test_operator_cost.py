"""The operator's benchmark: the builds it compares with, its goals and tables. No times are judged."""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import measuring, operator_cost, operator_decay, operator_peers
from benchmarks.operator_peers import BOTH, FAST, FLA, FORWARD, SOFTMAX, fast_transformers, own_layout
from benchmarks.operator_report import CACHE, DECODING, ONE_HEAD, crossover_table, goals
from causal_linear_attention import causal_linear_attention
from causal_linear_attention.selection import KERNELS
from lab.errors import UserError
from lab.files import check_output

MAIN = "ours, cpp"


def build(folder, answer):
    package = folder / "fast_transformers" / "causal_product"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .compiled import causal_dot_product\n")
    (package / "compiled.py").write_text(f"def causal_dot_product(q, k, v):\n    return {answer}\n")
    return folder


def test_two_builds_of_a_peer_do_not_share_code(tmp_path):
    folders = [build(tmp_path / str(answer), answer) for answer in (1, 2)]
    functions = [fast_transformers(folder) for folder in folders]
    assert [f(None, None, None) for f in functions] == [1, 2]
    assert len({f.__module__ for f in functions}) == 2


def test_a_folder_without_the_peer_is_named(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} holds no fast-transformers"):
        fast_transformers(tmp_path)


def result(device="cpu", **times):
    """Records of `part: {name: milliseconds}` at one length."""
    length = 512
    records = [
        {"part": part, "heap": "kept", "length": length, "name": name, "ms": [ms - 0.1, ms, ms + 5]}
        for part, named in times.items()
        for name, ms in named.items()
    ]
    return {"settings": {"device": device}, "main": MAIN, "records": records, "memory": {}}


def judged(found):
    return {wanted: (measured, outcome) for wanted, measured, outcome in goals(found)}


def test_goals_compare_medians():
    found = result(**{FORWARD: {MAIN: 2.0, FAST: 9.0}, BOTH: {MAIN: 2.0, FAST: 8.9}})
    rows = judged(found)
    assert rows[f"forward, N = 512, heap kept: times {FAST}: at least 4.5"] == ("4.50", "met")
    assert rows[f"forward + backward, N = 512, heap kept: times {FAST}: at least 4.5"][1] == "not met"
    found = result(**{ONE_HEAD: {MAIN: 1.0, FAST: 6.9}})
    assert next(iter(judged(found).values())) == ("6.90", "not met")
    found["memory"] = {MAIN: 4.05}
    assert [*judged(found).values()][-1] == ("4.05", "met")


def test_decoding_must_not_depend_on_the_position():
    times = {("step", 1024): 0.02, ("step", 32768): 0.03, (CACHE, 32768): 4.0}
    records = [
        {"part": DECODING, "heap": "", "length": at, "name": name, "ms": [ms]}
        for (name, at), ms in times.items()
    ]
    rows = judged({"settings": {"device": "cpu"}, "main": MAIN, "records": records, "memory": {}})
    assert rows["decoding at 32,768 over 1,024: at most 1.05"] == ("1.50", "not met")
    assert rows[f"decoding at 32,768, step: times {CACHE}: at least 100"] == ("133", "met")


def test_crossover_is_behind_the_last_length_that_softmax_wins():
    def times(dim, softmax):
        return [
            {"dim": dim, "length": n, "ms": {"ours, cpp": 1.0, SOFTMAX: ms}}
            for n, ms in zip((64, 128, 256), softmax, strict=True)
        ]

    lines = crossover_table({"crossover": times(16, [2, 0.5, 3]) + times(32, [2, 2, 0.5])}).splitlines()
    assert lines[2] == "| 16 | 256 | 3.0 |" and lines[3] == "| 32 | beyond 256 | 0.5 |"
    lines = crossover_table({"crossover": times(64, [2, 3, 4])}).splitlines()
    assert lines[2] == "| 64 | ≤ 64 | 4.0 |"


def test_flash_linear_attention_gets_its_own_layout(monkeypatch):
    """Contiguous (B, N, H, D): it would copy views, and the copies would count as its time."""
    seen = []

    def chunk_linear_attn(q, k, v, scale, normalize):
        seen.append((q.shape, q.is_contiguous() and k.is_contiguous() and v.is_contiguous()))
        return v, None

    monkeypatch.setitem(sys.modules, "fla", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "fla.ops", SimpleNamespace())
    module = SimpleNamespace(chunk_linear_attn=chunk_linear_attn)
    monkeypatch.setitem(sys.modules, "fla.ops.linear_attn", module)
    function = operator_peers.flash_linear_attention()
    function(*(own_layout(FLA, torch.zeros(2, 3, 5, 4)) for _ in range(3)))
    assert seen == [((2, 5, 3, 4), True)]
    x = torch.zeros(2, 3, 5, 4)
    assert own_layout(MAIN, x) is x


def test_heads_too_wide_for_the_kernels_are_measured_in_pytorch(monkeypatch):
    """An example is float32 heads of more than 128 columns on a GPU; `main` then names PyTorch's rows."""
    monkeypatch.setitem(KERNELS, "cpp", replace(KERNELS["cpp"], max_dim=lambda dtype, decays: 8))
    monkeypatch.setattr(operator_cost, "ENOUGH_MS", 0)
    monkeypatch.setattr(measuring, "SAMPLE_MS", 0)
    words = ["--heads", "1", "--dim", "16", "--lengths", "8", "--rounds", "1", "--device", "cpu"]
    found = operator_cost.costs(operator_cost.parse_arguments(words), torch.float32, "kept")
    assert {x["name"] for records in found for x in records if x["name"].startswith("ours")} == {
        "ours, torch",
        "ours, torch, bfloat16",
    }
    assert operator_peers.ours("cpu", torch.float32, 16) == "ours, torch"


def test_published_shapes_and_their_bytes():
    titles = [x.title for x in operator_peers.shapes()]
    assert titles[0] == "B1 T8192 H96 D128" and titles[-1] == "B8 T1024 H8 D64" and len(titles) == 6
    first = operator_peers.shapes()[0]
    assert first.bytes(FORWARD, 2) == 4 * 8192 * 96 * 128 * 2 and first.bytes(BOTH, 2) == 11 * 8192 * 96 * 256


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_decays_are_measured_and_written(monkeypatch, tmp_path, capsys, dtype):
    monkeypatch.setattr(operator_decay, "ENOUGH_MS", 0)
    monkeypatch.setattr(operator_decay, "DIMS", (8,))
    monkeypatch.setattr(measuring, "SAMPLE_MS", 0)
    options = SimpleNamespace(device="cpu", dtype=dtype, rounds=1, out=tmp_path, quicker=64)
    operator_decay.decay_costs(options)
    check_output(tmp_path / "decay.json", operator_decay.RESULT)  # so that it may be measured again
    records = json.loads((tmp_path / "decay.json").read_text())["records"]
    assert [r["part"] for r in records] == [FORWARD] * 5 + [BOTH] * 5
    assert "| 8 | forward | ours, a decay per head |" in (tmp_path / "decay.md").read_text()
    assert (tmp_path / "decay.png").exists()
    q, k, v, decay = (torch.rand(1, 2, 128, 8, dtype=torch.float64) for _ in range(4))
    decay = -decay[..., 0]
    expected = causal_linear_attention(q, k, v, log_decay=decay)
    torch.testing.assert_close(operator_decay.formula(q, k, v, decay, 64), expected)


def test_decays_are_measured_with_the_heap_kept(monkeypatch, tmp_path):
    """In the same process, begun again where its environment is another."""
    words = ["operator_cost.py", "--decay", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    again, measured = Mock(side_effect=SystemExit), Mock()
    monkeypatch.setattr("os.execve", again)
    monkeypatch.setattr(operator_decay, "decay_costs", measured)
    with pytest.raises(SystemExit):
        operator_cost.main()
    kept = again.call_args.args[2]
    assert kept.items() >= operator_cost.HEAPS["kept"].items() and "MALLOC_ARENA_MAX" not in kept
    monkeypatch.setattr("os.environ", kept)
    operator_cost.main()
    assert measured.call_count == 1


def test_the_anchor_is_measured_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(operator_peers, "ENOUGH_MS", 0)
    monkeypatch.setattr(measuring, "SAMPLE_MS", 0)
    shape = operator_peers.shapes()[-1].scaled(256)
    with FlopCounterMode(display=False) as counter:
        operator_peers.anchor(SimpleNamespace(device="cpu", rounds=1, out=tmp_path, quicker=64), [shape])
    # Without instructions for bfloat16 a CPU does about 10⁹ of them in a second.
    assert counter.get_total_flops() < 1e8
    check_output(tmp_path / "anchor.json", operator_cost.RESULT)  # so that it may be measured again
    result = json.loads((tmp_path / "anchor.json").read_text())
    records, moved = result["records"], 4 * 4 * 2 * 64 * 2
    assert {(r["part"], r["shape"]) for r in records} == {(FORWARD, shape.title), (BOTH, shape.title)}
    assert records[0]["floor_ms"] == pytest.approx(moved / result["peak"]["GB/s"] / 1e6)
    assert f"| {shape.title} | {records[0]['name']} |" in (tmp_path / "anchor.md").read_text()
