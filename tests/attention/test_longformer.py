"""Longformer's attention against its formula, query by query."""

import pytest
import torch

from user_dir.attention import build_attention


def build(**options):
    return build_attention("longformer", 12, 2, causal=False, **options).double().eval()


def reference(module, x, window):
    """One row `x: (n, D)` without padding, each query's keys looked up one by one."""
    n, d = len(x), module.head_dim
    q, k, v = (f(x).view(n, 2, d) for f in (module.q_proj, module.k_proj, module.v_proj))
    gq, gk, gv = (
        f(x).view(n, 2, d) for f in (module.q_proj_global, module.k_proj_global, module.v_proj_global)
    )
    rows = []
    for i in range(n):
        keys = sorted({0} | {j for j in range(n) if abs(i - j) <= window // 2})
        heads = []
        for h in range(2):
            if i == 0:
                heads.append(torch.softmax(gk[:, h] @ gq[0, h] / d**0.5, 0) @ gv[:, h])
            else:
                heads.append(torch.softmax(k[keys, h] @ q[i, h] / d**0.5, 0) @ v[keys, h])
        rows.append(torch.cat(heads))
    return module.out_proj(torch.stack(rows))


@pytest.mark.parametrize("window", [2, 6, 32])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 16, 17, 50])
def test_equals_the_formula(window, length):
    module = build(window=window)
    x = torch.randn(length, 12, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(length, 12, dtype=torch.float64)

    def gradients(out):
        return torch.autograd.grad((out * cotangent).sum(), [x, *module.parameters()], materialize_grads=True)

    expected = reference(module, x, window)
    got = module(x[:, None])[0][:, 0]
    torch.testing.assert_close(got, expected)
    for a, b in zip(gradients(got), gradients(expected), strict=True):
        torch.testing.assert_close(a, b)


def test_padding_leaves_the_formula():
    module = build(window=6)
    x = torch.randn(30, 3, 12, dtype=torch.float64)
    sizes = [30, 17, 1]
    out, _ = module(x, key_padding_mask=torch.arange(30) >= torch.tensor(sizes)[:, None])
    for row, size in enumerate(sizes):
        torch.testing.assert_close(out[:size, row], reference(module, x[:size, row], 6))


def test_a_window_over_the_whole_sequence_is_full_attention_but_for_the_first_token():
    module, softmax = build(window=100), build_attention("softmax", 12, 2, causal=False).double().eval()
    softmax.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(40, 2, 12, dtype=torch.float64)
    torch.testing.assert_close(module(x)[0][1:], softmax(x)[0][1:])
    assert not torch.allclose(module(x)[0][0], softmax(x)[0][0])
