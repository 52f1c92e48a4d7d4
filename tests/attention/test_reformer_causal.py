"""The causal form of Reformer's attention against its definition, token by token."""

import pytest
import torch

from user_dir.attention import build_attention


def build(chunk_size=4, rounds=3, buckets=6, **options):
    options = {"chunk_size": chunk_size, "rounds": rounds, "buckets": buckets, **options}
    return build_attention("reformer", 12, 2, causal=True, **options).double()


def definition(module, x):
    """Outputs of a row `x: (N, D)`: in each head and round, tokens see all earlier ones in their bucket."""
    window = module.options.chunk_size
    qk, v = (f(x).unflatten(1, (module.num_heads, -1)) for f in (module.query_key, module.value))
    out = torch.zeros_like(v)
    for h in range(module.num_heads):
        key = qk[:, h] / (qk[:, h].square().mean(-1, keepdim=True) + 1e-6).sqrt() / module.head_dim**0.5
        turned = torch.einsum("nd,drk->rnk", qk[:, h], module.rotations[h])
        bucket = torch.cat([turned, -turned], -1).argmax(-1)
        for i in range(len(x)):
            found = []
            for r in range(len(bucket)):
                seen = [j for j in range(i + 1) if bucket[r, j] == bucket[r, i]][-window:]
                score = torch.stack([qk[i, h] @ key[j] if j < i else x.new_tensor(-1e5) for j in seen])
                found.append((torch.softmax(score, 0) @ v[seen, h], score.logsumexp(0)))
            share = torch.softmax(torch.stack([mass for _, mass in found]), 0)
            out[i, h] = sum(s * part for s, (part, _) in zip(share, found, strict=True))
    return module.out_proj(out.flatten(1))


@pytest.mark.parametrize("length", [1, 3, 4, 37])
@pytest.mark.parametrize(
    "options", [{}, {"chunk_size": 1}, {"chunk_size": 7, "rounds": 1, "buckets": 2}], ids=str
)
def test_equals_the_definition(options, length):
    module = build(**options).eval()
    x = torch.randn(length, 2, 12, dtype=torch.float64)
    out, _ = module(x)
    for row in range(2):
        torch.testing.assert_close(out[:, row], definition(module, x[:, row]))


def test_forms_share_their_parameters():
    causal = build()
    full = build_attention("reformer", 12, 2, causal=False, rounds=3, buckets=6).double()
    full.load_state_dict(causal.state_dict())
    assert causal.rotations.shape == (2, 6, 3, 3)


def test_planes_are_drawn_again_in_training_only():
    module = build(redraw=True)
    first = module.rotations.clone()
    x = torch.randn(9, 1, 12, dtype=torch.float64)
    module.eval()(x)
    assert torch.equal(module.rotations, first)
    module.train().set_num_updates(1)
    drawn = module.rotations.clone()
    assert not torch.equal(drawn, first)
    fixed = build().train()
    fixed.load_state_dict(module.state_dict())
    fixed.set_num_updates(2)
    assert torch.equal(fixed.rotations, drawn)


def test_gradients_are_those_of_the_definition():
    module = build().eval()
    x = torch.randn(20, 1, 12, dtype=torch.float64)
    weights = torch.randn(20, 12, dtype=torch.float64)
    (module(x)[0][:, 0] * weights).sum().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    (definition(module, x[:, 0]) * weights).sum().backward()
    for gradient, parameter in zip(gradients, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
