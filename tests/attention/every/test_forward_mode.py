"""Forward mode over a backward pass: the tangent of the gradients, or a refusal, but never nothing."""

import torch
from torch.autograd import forward_ad

from tests.helpers.mechanisms import build, forms_of
from user_dir.modules import GLU

NO_FORMULA = "Trying to use forward AD with"


def check(module, x):
    """The gradients are linear in the incoming one, so that their tangent is the gradient by its tangent."""
    x.requires_grad_()
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    incoming, tangent = torch.randn_like(out), torch.randn_like(out)
    (expected,) = torch.autograd.grad(out, x, tangent, retain_graph=True)
    with forward_ad.dual_level():
        try:
            (grad,) = torch.autograd.grad(out, x, forward_ad.make_dual(incoming, tangent))
        except NotImplementedError as error:
            assert NO_FORMULA in str(error)
            return
        found = forward_ad.unpack_dual(grad).tangent
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@forms_of()
def test_attention(key, causal):
    torch.manual_seed(0)
    check(build(key, causal, longest=64).train(), torch.randn(9, 2, 12))


def test_glu():
    torch.manual_seed(0)
    check(GLU(12, 20, "silu"), torch.randn(5, 12))
