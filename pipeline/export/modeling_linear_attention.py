"""Linear-attention Transformers for `transformers`, in plain PyTorch.

`scripts/export_hf.sh` of the project that trains these models copies this file beside the exported weights;
it needs `torch` and `transformers` only:

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)

Attentions: softmax, elu (Katharopoulos et al. 2020), norm and diag (TransNormer, Qin et al. 2022), lln and
lln_diag (Nahshan et al. 2024). Generation keeps a state of constant size per layer (softmax: the keys and
values of all tokens). Padding may be on either side of a row. LLN's standard deviations of queries and keys
are those of the exported checkpoint; they do not change in fine-tuning.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import ModelOutput

CHUNK = 64  # positions that linear attention takes at once
BLOCK = 16  # those of LLN, whose terms within a block are formed one by one
LOWEST, FLOOR = -1e30, 1e-20  # of LLN: the maximum over no keys; the least denominator
ACTIVATIONS = {
    "identity": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class LinearAttentionConfig(PretrainedConfig):
    """What the exporter writes to config.json; `plan` names the attentions of each layer, summed if several.

    `attention_options` has the options of each attention by its name, as the training calls them.
    """

    model_type = "linear_attention"

    def __init__(
        self,
        vocab_size=32,
        hidden_size=16,
        num_attention_heads=2,
        plan=(("norm",),),
        causal=True,
        attention_options=None,
        feed_forward="glu",
        feed_forward_size=32,
        feed_forward_activation="silu",
        norm="rmsnorm",
        final_norm=None,
        pre_norm=True,
        positions="sinusoidal",
        max_position_embeddings=512,
        embedding_scale=1.0,
        output_bias=False,
        head_activation="gelu",
        classifier_size=16,
        classifier_activation="tanh",
        classifier_dropout=0.0,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
        **others,
    ):
        given = {k: v for k, v in locals().items() if k not in ("self", "others", "__class__")}
        passed_on = ("bos_token_id", "pad_token_id", "eos_token_id", "tie_word_embeddings")
        for name, value in given.items():
            if name not in passed_on:
                setattr(self, name, value)
        self.plan = [list(layer) for layer in plan]
        self.num_hidden_layers = len(self.plan)
        self.attention_options = attention_options or {}
        super().__init__(**{name: given[name] for name in passed_on}, **others)
        for name in passed_on:
            setattr(self, name, given[name])


@dataclass
class Tokens:
    """What all layers share of one call: the next tokens of each row, padding behind the real ones.

    `padding: (B, T)`, True at padding; `start, end: (B,)` count the real tokens before and with these.
    """

    padding: torch.Tensor
    start: torch.Tensor

    def __post_init__(self):
        self.end = self.start + (~self.padding).sum(1)
        self.positions = self.start[:, None] + torch.arange(self.padding.shape[1], device=self.start.device)


class DecodingState:
    """Of each row: how many real tokens and columns were seen, and what each attention remembers of them."""

    def __init__(self, rows, device):
        self.seen = torch.zeros(rows, dtype=torch.long, device=device)
        self.columns, self.layers = 0, {}

    def get_seq_length(self, layer_idx=0):
        """Columns seen, padding included."""
        return self.columns

    def reorder_cache(self, beam_idx):
        """Row i becomes the former row `beam_idx[i]`."""
        self.seen = self.seen.index_select(0, beam_idx)
        self.layers = {
            key: {name: x.index_select(0, beam_idx) for name, x in layer.items()}
            for key, layer in self.layers.items()
        }


class RMSNorm(nn.Module):
    """`x / (||x|| D^(-1/2) + 1e-8)`, without parameters."""

    def forward(self, x):
        """`(..., D)`."""
        root = torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True) * x.shape[-1] ** -0.5
        return (x.float() / (root + 1e-8)).to(x.dtype)


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


class SelfAttention(nn.Module):
    """Projections and heads; a subclass computes `attend`."""

    def __init__(self, config, options):
        super().__init__()
        width, self.heads, self.causal = config.hidden_size, config.num_attention_heads, config.causal
        self.head_dim = width // self.heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.dropout = nn.Dropout(config.attention_dropout)

    def attend(self, q, k, v, tokens, state):
        """`q, k, v: (B, H, T, d)`; `state`: a dictionary to read and write, None where none is kept."""
        raise NotImplementedError

    def finish(self, x):
        """What happens to the joined heads before the output map."""
        return x

    def forward(self, x, tokens, state):
        """`x: (B, T, D)`."""
        q, k, v = (
            project(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = self.attend(q, k, v, tokens, state)
        return self.out_proj(self.finish(out.transpose(1, 2).flatten(2)).to(x.dtype))


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

    def finish(self, x):
        """See `SelfAttention`."""
        return self.norm(x)


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
    """Softmax over what is visible; zero for a row that sees nothing."""
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
        self.norm = RMSNorm() if options["activation"] == "relu" else nn.Identity()
        self.weights = relu_weights if options["activation"] == "relu" else softmax_weights

    def attend(self, q, k, v, tokens, state):
        """See `SelfAttention`."""
        places = (tokens.positions % self.size)[:, None]
        q, k = (
            (q * self.head_dim**-0.5, k)
            if self.urpe is None
            else (self.urpe(q, places), self.urpe(k, places))
        )
        weigh = lambda scores, visible: self.dropout(self.weights(scores, visible))  # noqa: E731
        return attend_in_blocks(q, k, v, tokens, state, self.size, self.causal, weigh)

    def finish(self, x):
        """See `SelfAttention`."""
        return self.norm(x)


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
        return out[..., :-1] / out[..., -1:].clamp(min=FLOOR)

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


ATTENTIONS = {
    "softmax": SoftmaxAttention,
    "elu": EluAttention,
    "norm": NormAttention,
    "diag": DiagAttention,
    "lln": LLNAttention,
    "lln_diag": LLNDiagAttention,
}


class Layer(nn.Module):
    """Attention, then a feed-forward network, each with its norm and its residual sum."""

    def __init__(self, config, names):
        super().__init__()
        width, inner = config.hidden_size, config.feed_forward_size
        parts = [ATTENTIONS[name](config, config.attention_options.get(name, {})) for name in names]
        self.self_attn = parts[0] if len(parts) == 1 else nn.ModuleDict({"parts": nn.ModuleList(parts)})
        self.self_attn_layer_norm, self.final_layer_norm = (NORMS[config.norm](width) for _ in range(2))
        self.activation = ACTIVATIONS[config.feed_forward_activation]
        if config.feed_forward == "glu":
            linear = {"l1": nn.Linear(width, inner), "l2": nn.Linear(width, inner)}
            self.glu = nn.ModuleDict({**linear, "l3": nn.Linear(inner, width)})
        else:
            self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout, self.inner_dropout = nn.Dropout(config.dropout), nn.Dropout(config.activation_dropout)
        self.pre_norm = config.pre_norm

    def attend(self, x, tokens, state):
        """The sum of the attentions; `state` has a dictionary for each of them."""
        single = isinstance(self.self_attn, SelfAttention)
        parts = [self.self_attn] if single else self.self_attn["parts"]
        return sum(part(x, tokens, state and state[i]) for i, part in enumerate(parts))

    def feed_forward(self, x):
        """The position-wise network."""
        if hasattr(self, "glu"):
            inner = self.activation(self.glu["l1"](x)) * self.glu["l2"](x)
            return self.glu["l3"](self.inner_dropout(inner))
        return self.fc2(self.inner_dropout(self.activation(self.fc1(x))))

    def forward(self, x, tokens, state):
        """`x: (B, T, D)`."""
        y = self.self_attn_layer_norm(x) if self.pre_norm else x
        x = x + self.dropout(self.attend(y, tokens, state))
        x = x if self.pre_norm else self.self_attn_layer_norm(x)
        y = self.final_layer_norm(x) if self.pre_norm else x
        x = x + self.dropout(self.feed_forward(y))
        return x if self.pre_norm else self.final_layer_norm(x)


class LinearAttentionPreTrainedModel(PreTrainedModel):
    """What the models below share."""

    config_class = LinearAttentionConfig
    base_model_prefix = "model"
    _no_split_modules = ("Layer",)
    _is_stateful = True

    def _init_weights(self, module):
        """Each part's own initialisation stays; training from scratch belongs to the project itself."""


class LinearAttentionModel(LinearAttentionPreTrainedModel):
    """Embeddings and layers, causal or bidirectional."""

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.offset = config.pad_token_id + 1
        self.embed_positions = None
        if config.positions == "learned":
            self.embed_positions = nn.Embedding(config.max_position_embeddings + self.offset, width)
        self.layernorm_embedding = None if config.causal else nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(config, names) for names in config.plan)
        self.layer_norm = None
        if config.final_norm is not None:
            self.layer_norm = NORMS[config.final_norm](width)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def get_input_embeddings(self):
        """See `PreTrainedModel`."""
        return self.embed_tokens

    def set_input_embeddings(self, value):
        """See `PreTrainedModel`."""
        self.embed_tokens = value

    def forward(self, input_ids, attention_mask=None, past_key_values=None):
        """Features `(B, T, D)`, and where each row's first real token is, `(B,)`.

        `attention_mask: (B, T)` is 0 at padding; without it, padding is where `pad_token_id` is. A
        `DecodingState` as `past_key_values` is updated in place.
        """
        real = input_ids.ne(self.config.pad_token_id)
        if attention_mask is not None:
            real = attention_mask[:, -input_ids.shape[1] :].bool()
        first = real.long().cumsum(1).eq(0).sum(1) % max(1, real.shape[1])
        ids, real = roll(input_ids, first), roll(real, first)
        state = past_key_values
        start = torch.zeros_like(first) if state is None else state.seen
        tokens = Tokens(~real, start)
        x = self.embed(ids, tokens, ids.shape[1] + (0 if state is None else state.columns))
        for i, layer in enumerate(self.layers):
            names = range(len(self.config.plan[i]))
            kept = None if state is None else [state.layers.setdefault((i, j), {}) for j in names]
            x = layer(x, tokens, kept)
        if state is not None:
            state.seen, state.columns = tokens.end, state.columns + ids.shape[1]
        x = x if self.layer_norm is None else self.layer_norm(x)
        return roll(x, -first), first

    def embed(self, ids, tokens, columns):
        """Token and position embeddings; `columns` counts the positions so far, with padding."""
        x = self.config.embedding_scale * self.embed_tokens(ids)
        places = tokens.positions + self.offset
        if self.embed_positions is not None:
            known = self.embed_positions.num_embeddings - self.offset
            if columns > known and int(places.masked_fill(tokens.padding, 0).max()) >= known + self.offset:
                raise ValueError(f"the model has learned {known} positions; give it no more tokens than that")
            x = x + self.embed_positions(places.clamp(max=self.embed_positions.num_embeddings - 1))
        elif self.config.positions == "sinusoidal":
            half = x.shape[-1] // 2
            steps = torch.arange(half, dtype=torch.float64, device=x.device)
            angles = places[..., None] * torch.exp(steps * -(math.log(10000) / max(half - 1, 1)))
            x = x + F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, x.shape[-1] % 2)).to(x.dtype)
        x = x if self.layernorm_embedding is None else self.layernorm_embedding(x)
        x = self.dropout(x)
        return x if self.config.causal else x.masked_fill(tokens.padding[..., None], 0.0)


def roll(x, shift):
    """Rows of `x: (B, T, ...)` moved to the left by `shift: (B,)`, what falls out coming in on the right."""
    index = (torch.arange(x.shape[1], device=x.device) + shift[:, None]) % max(1, x.shape[1])
    return x.gather(1, index.view(*index.shape, *[1] * (x.dim() - 2)).expand_as(x))


def mean_loss(logits, labels, count=None):
    """Cross-entropy over the labels that are not -100: their mean, or their sum divided by `count`.

    `transformers.Trainer` gives the number of labels of all batches of an update as `count`.
    """
    reduction = "mean" if count is None else "sum"
    return F.cross_entropy(logits.float(), labels, reduction=reduction) / (1 if count is None else count)


@dataclass
class LanguageModelOutput(ModelOutput):
    """Logits `(B, T, vocabulary)`, the loss where there are labels, and the state for the next tokens."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    past_key_values: DecodingState | None = None


class LinearAttentionForCausalLM(LinearAttentionPreTrainedModel, GenerationMixin):
    """A language model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = LinearAttentionModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=config.output_bias)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls):
        """`generate` leaves the state to the model."""
        return False

    def get_output_embeddings(self):
        """See `PreTrainedModel`."""
        return self.lm_head

    def prepare_inputs_for_generation(self, input_ids, past_key_values=None, attention_mask=None, **unused):
        """The columns that the state has not seen."""
        seen = 0 if past_key_values is None else min(past_key_values.columns, input_ids.shape[1] - 1)
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "use_cache": unused.get("use_cache", True),
        }

    def forward(
        self,
        input_ids,
        attention_mask=None,
        labels=None,
        past_key_values=None,
        use_cache=False,
        num_items_in_batch=None,
        **unused,
    ):
        """`labels: (B, T)`, -100 where none; they are shifted here, as `transformers` has it."""
        if past_key_values is None and use_cache:
            past_key_values = DecodingState(len(input_ids), input_ids.device)
        features, _ = self.model(input_ids, attention_mask, past_key_values)
        logits, loss = self.lm_head(features), None
        if labels is not None:
            loss = mean_loss(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), num_items_in_batch)
        return LanguageModelOutput(loss, logits, past_key_values)


class MaskedLMHead(nn.Module):
    """A layer and the projection to the vocabulary."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.head_activation]
        self.layer_norm = nn.LayerNorm(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x):
        """`(B, T, D)`."""
        return self.decoder(self.layer_norm(self.activation(self.dense(x))))


class LinearAttentionForMaskedLM(LinearAttentionPreTrainedModel):
    """A RoBERTa encoder with its masked-LM head."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model, self.lm_head = LinearAttentionModel(config), MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self):
        """See `PreTrainedModel`."""
        return self.lm_head.decoder

    def forward(self, input_ids, attention_mask=None, labels=None, num_items_in_batch=None, **unused):
        """`labels: (B, T)`, -100 where none."""
        logits, loss = self.lm_head(self.model(input_ids, attention_mask)[0]), None
        if labels is not None:
            loss = mean_loss(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits)


class LinearAttentionForSequenceClassification(LinearAttentionPreTrainedModel):
    """A RoBERTa encoder with a classification head on the first token."""

    accepts_loss_kwargs = False  # `Trainer` divides the mean over each batch by their number

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LinearAttentionModel(config)
        self.classifier = nn.ModuleDict(
            {
                "dense": nn.Linear(config.hidden_size, config.classifier_size),
                "out_proj": nn.Linear(config.classifier_size, config.num_labels),
            }
        )
        self.activation = ACTIVATIONS[config.classifier_activation]
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None, **unused):
        """`labels: (B,)`: classes, or floating targets where there is one output."""
        features, first = self.model(input_ids, attention_mask)
        x = features[torch.arange(len(first), device=first.device), first]
        x = self.activation(self.classifier["dense"](self.dropout(x)))
        logits, loss = self.classifier["out_proj"](self.dropout(x)), None
        if labels is not None and self.num_labels == 1:
            loss = F.mse_loss(logits[:, 0].float(), labels.float())
        elif labels is not None:
            loss = F.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
