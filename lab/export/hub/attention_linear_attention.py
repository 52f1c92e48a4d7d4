"""The attentions of an exported linear-attention Transformer, and norms and positions, in plain PyTorch.

softmax, elu (Katharopoulos et al. 2020), norm and diag (TransNormer, Qin et al. 2022), lln and lln_diag
(Nahshan et al. 2024), retention (RetNet, Sun et al. 2023), lightning (TransNormerLLM, Qin et al. 2023) and
gated (gated linear attention, Yang et al. 2024). LLN's standard deviations of queries and keys are those of
the exported checkpoint; they do not change in fine-tuning.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 64  # positions that linear attention takes at once
BLOCK = 16  # those of LLN, whose terms within a block are formed one by one
LOWEST, FLOOR = -1e30, 1e-20  # of LLN: the maximum over no keys; added to denominators


@dataclass
class Tokens:
    """The next tokens of each row in one call, padding behind the real ones; all layers share it.

    `padding: (B, T)`, True at padding; `start, end: (B,)` count the real tokens before and with these.
    """

    padding: torch.Tensor
    start: torch.Tensor

    def __post_init__(self):
        self.end = self.start + (~self.padding).sum(1)
        self.positions = self.start[:, None] + torch.arange(self.padding.shape[1], device=self.start.device)


class RMSNorm(nn.Module):
    """`x / (||x|| D^(-1/2) + 1e-8)`, without parameters."""

    def forward(self, x):
        """`(..., D)`."""
        root = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return (x.float() / (root + 1e-8)).to(x.dtype)


class WeightedRMSNorm(nn.Module):
    """`w x / sqrt(mean x^2 + 1e-6)`, w one number per channel."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        """`(..., D)`."""
        wide = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return (self.weight.float() * wide).to(x.dtype)


class ScaleNorm(nn.Module):
    """`g x / sqrt(mean x^2 + 1e-5)`, g one number."""

    def __init__(self):
        super().__init__()
        self.scala = nn.Parameter(torch.ones(1))

    def forward(self, x):
        """`(..., D)`."""
        return (self.scala * x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(
            x.dtype
        )


NORMS = {
    "layernorm": nn.LayerNorm,
    "rmsnorm": lambda width: RMSNorm(),
    "weighted_rmsnorm": WeightedRMSNorm,
    "scalenorm": lambda width: ScaleNorm(),
}


class LRPE(nn.Module):
    """A reflection, then a rotation of each pair of channels by position times theta."""

    def __init__(self, head_dim, scale=1.0):
        super().__init__()
        self.scale = scale
        exponents = torch.arange(head_dim // 2, dtype=torch.float32) * (-2.0 / head_dim)
        self.theta = nn.Parameter((10000.0**exponents).view(1, 1, -1))
        # No parameter: `from_pretrained` would make it one that is trained.
        self.register_buffer("v", F.normalize(torch.randn(head_dim), dim=0))

    def forward(self, x, positions):
        """`x: (B, H, N, d)` at `positions` that broadcast to `(B, H, N)`."""
        v, wide = self.v.float(), x.float()
        wide = self.scale * (wide - 2 * (wide @ v)[..., None] * v)
        angles = positions[..., None] * self.theta.double().flatten()
        cos, sin = angles.cos().float(), angles.sin().float()
        pairs = 2 * cos.shape[-1]
        even, odd = wide[..., 0:pairs:2], wide[..., 1:pairs:2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
        return torch.cat([turned, wide[..., pairs:]], -1).to(x.dtype)


class Attention(nn.Module):
    """Base of all attentions; called with `x: (B, T, D)`, `Tokens` and the layer's state, see `attend`."""

    def __init__(self, config, options):
        super().__init__()
        self.heads, self.causal = config.num_attention_heads, config.causal
        self.head_dim = config.hidden_size // self.heads

    def apart(self, x):
        """`(B, T, H d)` to `(B, H, T, d)`."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class SelfAttention(Attention):
    """Projections and heads; a subclass computes `attend`."""

    def __init__(self, config, options):
        super().__init__(config, options)
        width = config.hidden_size
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(config.attention_dropout)
        self.norm = nn.Identity()  # of the joined heads, before the output map

    def attend(self, q, k, v, tokens, state):
        """`q, k, v: (B, H, T, d)`; `state`: a dictionary to read and write, None where none is kept."""
        raise NotImplementedError

    def forward(self, x, tokens, state):
        """`x: (B, T, D)`."""
        q, k, v = (self.apart(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        out = self.attend(q, k, v, tokens, state)
        return self.out_proj(self.norm(out.transpose(1, 2).flatten(2)).to(x.dtype))


class SoftmaxAttention(SelfAttention):
    """`softmax(q k^T / sqrt(d)) v`."""

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        hidden = tokens.padding
        if state:
            k, v = torch.cat([state["k"], k], 2), torch.cat([state["v"], v], 2)
            hidden = torch.cat([state["hidden"], hidden], 1)
        if state is not None:
            state.update(k=k, v=v, hidden=hidden)
        place = torch.arange(k.shape[2], device=q.device)
        own = place[-q.shape[2] :, None]
        visible = ~hidden[:, None, None] & ((place <= own) | (not self.causal))
        # Every token sees itself, so that no row of padding is without keys.
        mask = visible | (place == own)
        p = self.dropout.p if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)


class LinearAttention(SelfAttention):
    """`phi(q_t) sum_s phi(k_s)^T v_s`, divided by the sum of the weights if `normalize`."""

    normalize = False

    def features(self, q, k, positions):
        """phi of queries and keys."""
        raise NotImplementedError

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        q, k = self.features(q, k, tokens.positions[:, None])
        q, k, v = q.float(), k.float().masked_fill(tokens.padding[:, None, :, None], 0.0), v.float()
        if self.normalize:
            v = F.pad(v, (0, 1), value=1.0)
        total = state["sum"] if state else v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        outs = []
        if self.causal:
            for a, b, c in zip(q.split(CHUNK, 2), k.split(CHUNK, 2), v.split(CHUNK, 2), strict=True):
                outs.append((a @ b.mT).tril() @ c + a @ total)
                total = total + b.mT @ c
        else:
            outs.append(q @ (k.mT @ v))
        if state is not None:
            state["sum"] = total
        out = torch.cat(outs, 2)
        return out[..., :-1] / (out[..., -1:] + 1e-6) if self.normalize else out


class EluAttention(LinearAttention):
    """phi = 1 + elu, with a denominator unless the options say "none"."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.normalize = options["normalizer"] == "sum"

    def features(self, q, k, positions):
        """See `LinearAttention`."""
        return one_plus_elu(q.float()), one_plus_elu(k.float())


class NormAttention(LinearAttention):
    """phi = elu or 1 + elu, then LRPE; RMSNorm in place of a denominator."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.map = F.elu if options["feature_map"] == "elu" else one_plus_elu
        self.urpe = LRPE(self.head_dim) if options["positions"] == "lrpe" else None
        self.norm = RMSNorm()

    def features(self, q, k, positions):
        """See `LinearAttention`."""
        q, k = self.map(q.float()), self.map(k.float())
        return (q, k) if self.urpe is None else (self.urpe(q, positions), self.urpe(k, positions))


def one_plus_elu(x):
    """1 + x where positive, else exp(x)."""
    return F.relu(x) + torch.exp(x.clamp(max=0))


def attend_in_blocks(q, k, v, tokens, state, size, causal, weigh):
    """Attention inside blocks of `size` positions; the state is the block that is begun."""
    rows, heads, count, dim = q.shape
    start = tokens.start % size if causal else torch.zeros_like(tokens.start)
    blocks = -(-((size - 1 if state else 0) + count) // size)
    places = (start[:, None] + torch.arange(count, device=q.device))[:, None, :, None].expand_as(q)

    def laid_out(new, begun):
        room = new.new_zeros(rows, heads, blocks * size, dim)
        if begun is not None:
            room[:, :, :size] = begun
        return room.scatter(2, places, new).unflatten(2, (blocks, size))

    keys, values = (laid_out(x, state[name] if state else None) for x, name in ((k, "bk"), (v, "bv")))
    visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    if not causal:
        hidden = F.pad(tokens.padding, (0, blocks * size - count), value=True)
        visible = ~hidden.unflatten(1, (blocks, size))[:, None, :, None]
    out = weigh(laid_out(q, None) @ keys.mT, visible).to(v.dtype) @ values
    if state is not None:
        current = ((start + tokens.end - tokens.start) // size).clamp(max=blocks - 1)
        row = torch.arange(rows, device=q.device)
        state.update(bk=keys[row, :, current], bv=values[row, :, current])
    return out.flatten(2, 3).gather(2, places)


def softmax_weights(scores, visible):
    """Softmax over the visible keys; zero for a row that sees nothing."""
    return scores.float().masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)


def relu_weights(scores, visible):
    """ReLU, zero where hidden."""
    return F.relu(torch.where(visible, scores, 0.0))


class DiagAttention(SelfAttention):
    """ReLU (then RMSNorm) or softmax attention inside blocks."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.size = options["block_size"]
        self.urpe = LRPE(self.head_dim, self.head_dim**-0.25) if options["positions"] == "lrpe" else None
        self.weights = softmax_weights
        if options["activation"] == "relu":
            self.norm, self.weights = RMSNorm(), relu_weights

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        if self.weights is relu_weights and q.dtype == torch.float16:  # its sums would leave float16's range
            q, k, v = q.float(), k.float(), v.float()
        places = (tokens.positions % self.size)[:, None]
        q, k = (
            (q * self.head_dim**-0.5, k)
            if self.urpe is None
            else (self.urpe(q, places), self.urpe(k, places))
        )
        weigh = lambda scores, visible: self.dropout(self.weights(scores, visible))  # noqa: E731
        return attend_in_blocks(q, k, v, tokens, state, self.size, self.causal, weigh)


class LLNAttention(SelfAttention):
    """Features exp(alpha q) and exp(beta k), by moment matching of their standard deviations or fixed."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.options = options
        self.register_buffer("sigma", torch.ones(2))

    def exponents(self):
        """alpha and beta."""
        if self.options["alpha"]:
            return self.options["alpha"], self.options["beta"] or self.options["alpha"]
        q, k = self.sigma.float().clamp(min=1e-6).square()
        a, b = self.options["a"], self.options["b"]
        return (((k - b / q).clamp(min=0) / (2 * a)).sqrt(), ((q - b / k).clamp(min=0) / (2 * a)).sqrt())

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        alpha, beta = self.exponents()
        a = q.float() * alpha
        b = (k.float() * beta).masked_fill(tokens.padding[:, None, :, None], -torch.inf)
        v = F.pad(v.float(), (0, 1), value=1.0)
        top = state["top"] if state else torch.full_like(b[:, :, :1], LOWEST)
        total = state["sum"] if state else v.new_zeros(*b.shape[:2], b.shape[-1], v.shape[-1])
        outs = []
        size = BLOCK if self.causal else max(1, q.shape[2])
        for parts in zip(a.split(size, 2), b.split(size, 2), v.split(size, 2), strict=True):
            out, top, total = (self.block if self.causal else self.whole)(*parts, top, total)
            outs.append(out)
        if state is not None:
            state.update(top=top, sum=total)
        out = torch.cat(outs, 2)
        return out[..., :-1] / (out[..., -1:] + FLOOR)

    def block(self, a, b, v, top, total):
        """Some positions after those in `total`, all relative to running maxima of the keys."""
        highest = torch.maximum(b.cummax(2).values, top)
        largest = (a + highest).amax(-1, keepdim=True)
        a = a - largest
        terms = (a[:, :, :, None] + b[:, :, None]).clamp(max=0).exp().sum(-1).tril()
        out = terms @ v + (a + top).exp() @ total
        new = highest[:, :, -1:]
        return out, new, (top - new).exp().mT * total + (b - new).exp().mT @ v

    def whole(self, a, b, v, top, total):
        """All positions at once, each seeing all."""
        highest = torch.maximum(b.amax(2, keepdim=True), top)
        exponent = a + highest
        phi = (exponent - exponent.amax(-1, keepdim=True)).exp()
        return phi @ ((b - highest).exp().mT @ v), top, total


class LLNDiagAttention(LLNAttention):
    """LLN and softmax attention inside blocks, averaged or mixed by learned numbers."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.size = options["block_size"] or self.head_dim
        shape = (1, self.heads, 1, self.head_dim)
        if options["combination"] != "average":
            self.r = nn.Parameter(torch.full(shape, 0.5))
        if options["combination"] == "learnable_scale":
            self.p = nn.Parameter(torch.full(shape, 0.5))

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        weigh = lambda scores, visible: self.dropout(softmax_weights(scores, visible))  # noqa: E731
        begun = None if state is None else {name: state[name] for name in ("bk", "bv") if state}
        scaled = q * self.head_dim**-0.5
        diag = attend_in_blocks(scaled, k, v, tokens, begun, self.size, self.causal, weigh)
        lln = super().attend(q, k, v, tokens, state)
        if state is not None:
            state.update(begun)
        kind = self.options["combination"]
        if kind == "average":
            return 0.5 * (lln + diag)
        return self.r * lln + (self.p if kind == "learnable_scale" else 1 - self.r) * diag


class DecayingAttention(Attention):
    """`o_t = q_t S_t`, `S_t = e^(g_t) S_(t-1) + k_t^T v_t`; a subclass says what q, k, v and g are."""

    def inputs(self, x, positions):
        """Queries, keys and values `(B, H, T, ·)`, and gates `(B, T, ·)`."""
        raise NotImplementedError

    def log_decay(self, x):
        """g, `(H, 1)` or `(B, H, T)`."""
        raise NotImplementedError

    def finish(self, out, gate, positions):
        """The product `(B, H, T, ·)`, normalised and gated, `(B, T, ·)`."""
        raise NotImplementedError

    def forward(self, x, tokens, state):
        """See `Attention`."""
        q, k, v, gate = self.inputs(x, tokens.positions)
        hidden = tokens.padding[:, None]
        q, k, v = q.float(), k.float().masked_fill(hidden[..., None], 0.0), v.float()
        decay = self.log_decay(x).expand(k.shape[:3]).masked_fill(hidden, 0.0)
        total = state["sum"] if state else v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        outs = []
        for a, b, c, g in zip(*(one.split(CHUNK, 2) for one in (q, k, v, decay)), strict=True):
            g = g.cumsum(2)
            between = (g[..., None] - g[..., None, :]).tril().exp().tril()
            outs.append((a @ b.mT * between) @ c + g.exp()[..., None] * (a @ total))
            left = g[..., -1:]
            total = left.exp()[..., None] * total + ((left - g).exp()[..., None] * b).mT @ c
        if state is not None:
            state["sum"] = total
        return self.out_proj(self.finish(torch.cat(outs, 2), gate, tokens.positions).to(x.dtype))


class GatedRetention(DecayingAttention):
    """`W_o (silu(W_g x) * norm(o))`: what retention and gated share."""

    def __init__(self, config, options):
        super().__init__(config, options)
        width, inner = config.hidden_size, options["value_dim"] or 2 * config.hidden_size
        self.value_head_dim = inner // self.heads
        self.q_proj, self.k_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.v_proj, self.g_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def inputs(self, x, positions):
        """See `DecayingAttention`."""
        q, k, v = (self.apart(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        return *self.features(q.float(), k.float() * self.head_dim**-0.5, positions), v, self.g_proj(x)

    def finish(self, out, gate, positions):
        """See `DecayingAttention`."""
        return F.silu(gate) * self.normed(out, positions).transpose(1, 2).flatten(2)


class RetentionAttention(GatedRetention):
    """A constant decay per head, rotary positions, a norm without weight."""

    def features(self, q, k, positions):
        """Queries and keys, turned by their positions in pairs of channels."""
        steps = torch.linspace(0, 1, self.head_dim // 2, dtype=torch.float64, device=q.device)
        angles = positions[:, None, :, None] * 10000.0**-steps
        cos, sin = angles.cos().float(), angles.sin().float()

        def turned(x):
            even, odd = x[..., ::2], x[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

        return turned(q), turned(k)

    def rates(self, device):
        """The logarithms of the decays, `(H, 1)`, float64."""
        heads = torch.arange(self.heads, dtype=torch.float64, device=device)
        return torch.log1p(-(2.0 ** (-5 - heads)))[:, None]

    def log_decay(self, x):
        """See `DecayingAttention`."""
        return self.rates(x.device).float()

    def normed(self, out, positions):
        """The product, which is first divided by the root of the sum of its decays: a factor of epsilon."""
        rates = self.rates(out.device)
        total = torch.expm1((positions[:, None] + 1) * rates) / torch.expm1(rates)
        floor = (1e-6 * total).float()[..., None]
        return out * (out.square().mean(-1, keepdim=True) + floor).rsqrt()


class GatedAttention(GatedRetention):
    """A learned decay per position and head, a norm with a weight."""

    def __init__(self, config, options):
        super().__init__(config, options)
        self.decay_proj = nn.Linear(config.hidden_size, self.heads)
        self.norm = WeightedRMSNorm(self.value_head_dim)

    def features(self, q, k, positions):
        """Queries and keys as they are."""
        return q, k

    def log_decay(self, x):
        """See `DecayingAttention`."""
        return F.logsigmoid(self.decay_proj(x).float()).mT / 16

    def normed(self, out, positions):
        """The product, normalised."""
        return self.norm(out)


class LightningAttention(DecayingAttention):
    """Decays by slopes that differ by layer, LRPE of cosines in the first, RMSNorm over all heads, a gate."""

    def __init__(self, config, options):
        super().__init__(config, options)
        width, (layer, layers) = config.hidden_size, options["place"]
        self.qkvu_proj, self.out_proj = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.lrpe = (
            nn.ParameterDict({"theta": torch.ones(self.heads, 1, self.head_dim)}) if layer == 0 else None
        )
        self.remaining, self.norm = 1 - layer / max(layers - 1, 1) + 1e-5, RMSNorm()

    def inputs(self, x, positions):
        """See `DecayingAttention`."""
        q, k, v, gate = self.qkvu_proj(x).chunk(4, -1)
        q, k = F.silu(self.apart(q)).float(), F.silu(self.apart(k)).float()
        if self.lrpe is not None:
            angles = positions[:, None, :, None] * self.lrpe["theta"].double()
            cos, sin = angles.cos().float(), angles.sin().float()
            q, k = (torch.cat([one * cos, one * sin], -1) for one in (q, k))
        return q, k, self.apart(v), gate

    def log_decay(self, x):
        """See `DecayingAttention`."""
        return -self.remaining * torch.tensor(slopes(self.heads), device=x.device)[:, None]

    def finish(self, out, gate, positions):
        """See `DecayingAttention`."""
        return gate * self.norm(out.transpose(1, 2).flatten(2))


def slopes(heads):
    """ALiBi's `2^(-8 h / heads)`, h from 1; between powers of two every second of twice as many follows."""
    power = 1 << (heads.bit_length() - 1)
    own = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    return own if power == heads else own + slopes(2 * power)[::2][: heads - power]


ATTENTIONS = {
    "softmax": SoftmaxAttention,
    "elu": EluAttention,
    "norm": NormAttention,
    "diag": DiagAttention,
    "lln": LLNAttention,
    "lln_diag": LLNDiagAttention,
    "retention": RetentionAttention,
    "lightning": LightningAttention,
    "gated": GatedAttention,
}
