"""Linear-attention Transformers for `transformers`, in plain PyTorch.

`scripts/lab.sh export` of the project that trains these models copies this file and the two that it imports
beside the exported weights; they need `torch` and `transformers` only:

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)

Generation keeps a state of constant size per layer (softmax: the keys and values of all tokens). Padding may
be on either side of a row.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from .attention_linear_attention import ATTENTIONS, NORMS, Attention, Tokens
from .configuration_linear_attention import LinearAttentionConfig

ACTIVATIONS = {
    "identity": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "elu": F.elu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


class DecodingState:
    """Per row: the number of real tokens and of columns seen, and the state of each attention."""

    is_compileable = False  # read by `generate`

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


class Layer(nn.Module):
    """Attention, then a feed-forward network, each with its norm and its residual sum."""

    def __init__(self, config, names, place):
        super().__init__()
        width, inner, bias = config.hidden_size, config.feed_forward_size, config.feed_forward_bias
        options = [{**config.attention_options.get(name, {}), "place": place} for name in names]
        parts = [ATTENTIONS[name](config, own) for name, own in zip(names, options, strict=True)]
        self.self_attn = parts[0] if len(parts) == 1 else nn.ModuleDict({"parts": nn.ModuleList(parts)})
        self.self_attn_layer_norm, self.final_layer_norm = (NORMS[config.norm](width) for _ in range(2))
        self.activation = ACTIVATIONS[config.feed_forward_activation]
        if config.feed_forward == "glu":
            linear = {name: nn.Linear(width, inner, bias=bias) for name in ("l1", "l2")}
            self.glu = nn.ModuleDict({**linear, "l3": nn.Linear(inner, width, bias=bias)})
        else:
            self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout, self.inner_dropout = nn.Dropout(config.dropout), nn.Dropout(config.activation_dropout)
        self.pre_norm = config.pre_norm

    def attend(self, x, tokens, state):
        """The sum of the attentions; `state` has a dictionary for each of them."""
        single = isinstance(self.self_attn, Attention)
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
    """Base of the models below."""

    config_class = LinearAttentionConfig
    base_model_prefix = "model"
    _no_split_modules = ("Layer",)
    _is_stateful = True
    supports_gradient_checkpointing = True

    def _init_weights(self, module):
        """Parts that a checkpoint lacks, such as a head for other classes, keep their own initialisation."""
        if isinstance(module, nn.Linear | nn.LayerNorm):
            module.reset_parameters()


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
        layers = zip(config.plan, config.places, strict=True)
        self.layers = nn.ModuleList(Layer(config, names, place) for names, place in layers)
        self.layer_norm = None
        if config.final_norm is not None:
            self.layer_norm = NORMS[config.final_norm](width)
        self.dropout = nn.Dropout(config.dropout)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        """See `PreTrainedModel`."""
        return self.embed_tokens

    def set_input_embeddings(self, value):
        """See `PreTrainedModel`."""
        self.embed_tokens = value

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        past_key_values=None,
        inputs_embeds=None,
        output_hidden_states=None,
        output_attentions=None,
        **unused,
    ):
        """Features `(B, T, D)` of tokens or of their embeddings.

        `attention_mask: (B, T)` is 0 at padding; without it, padding is where `pad_token_id` is. A
        `DecodingState` as `past_key_values` is updated in place. Hidden states, if asked for, are the inputs
        of all layers, then the features.
        """
        if self.config.output_attentions if output_attentions is None else output_attentions:
            raise ValueError(
                "output_attentions is not supported: linear attention forms no attention weights"
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        real = real_tokens(self.config, input_ids, attention_mask, inputs_embeds)
        first = padding_before(real)
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        x, real = roll(x, first), roll(real, first)
        state = past_key_values
        start = torch.zeros_like(first) if state is None else state.seen
        tokens = Tokens(~real, start)
        x = self.embed(x, tokens, x.shape[1] + (0 if state is None else state.columns))
        inputs = []
        for i, layer in enumerate(self.layers):
            inputs += [x] if output_hidden_states else []
            names = range(len(self.config.plan[i]))
            if state is not None:
                x = layer(x, tokens, [state.layers.setdefault((i, j), {}) for j in names])
            elif self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(layer.__call__, x, tokens, None)
            else:
                x = layer(x, tokens, None)
        if state is not None:
            state.seen, state.columns = tokens.end, state.columns + x.shape[1]
        features = roll(x if self.layer_norm is None else self.layer_norm(x), -first)
        hidden = (*(roll(one, -first) for one in inputs), features) if output_hidden_states else None
        return BaseModelOutputWithPast(
            last_hidden_state=features, past_key_values=state, hidden_states=hidden
        )

    def embed(self, x, tokens, columns):
        """Scale token embeddings and add positions; `columns` counts the positions so far, with padding."""
        x = self.config.embedding_scale * x
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


def real_tokens(config, input_ids, attention_mask, inputs_embeds):
    """`(B, T)`, False at padding."""
    given = input_ids if inputs_embeds is None else inputs_embeds
    if attention_mask is not None:
        return attention_mask[:, -given.shape[1] :].bool()
    if inputs_embeds is not None:
        return torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
    return given.ne(config.pad_token_id)


def padding_before(real):
    """Where each row's first real token is, `(B,)`; 0 in a row without any."""
    return real.long().cumsum(1).eq(0).sum(1) % max(1, real.shape[1])


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

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None, **unused
    ):
        """The columns that the state has not seen; a prompt of embeddings comes before all `input_ids`."""
        inputs = {
            "attention_mask": attention_mask,
            "past_key_values": past_key_values,
            "use_cache": unused.get("use_cache", True),
        }
        if inputs_embeds is not None and past_key_values is None:
            width = inputs_embeds.shape[1] if attention_mask is None else attention_mask.shape[1]
            new = input_ids[:, input_ids.shape[1] - (width - inputs_embeds.shape[1]) :]
            return {"inputs_embeds": torch.cat([inputs_embeds, self.model.embed_tokens(new)], 1), **inputs}
        seen = 0 if past_key_values is None else min(past_key_values.columns, input_ids.shape[1] - 1)
        return {"input_ids": input_ids[:, seen:], **inputs}

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        labels=None,
        past_key_values=None,
        use_cache=False,
        num_items_in_batch=None,
        inputs_embeds=None,
        **options,
    ):
        """`labels: (B, T)`, -100 where none; they are shifted here, as `transformers` has it."""
        if past_key_values is None and use_cache:
            given = input_ids if inputs_embeds is None else inputs_embeds
            past_key_values = DecodingState(len(given), given.device)
        found = self.model(input_ids, attention_mask, past_key_values, inputs_embeds, **options)
        logits, loss = self.lm_head(found.last_hidden_state), None
        if labels is not None:
            loss = mean_loss(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=past_key_values, hidden_states=found.hidden_states
        )


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

    def set_output_embeddings(self, value):
        """See `PreTrainedModel`."""
        self.lm_head.decoder = value

    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **options):
        """`labels: (B, T)`, -100 where none."""
        found = self.model(input_ids, attention_mask, **options)
        logits, loss = self.lm_head(found.last_hidden_state), None
        if labels is not None:
            loss = mean_loss(logits.flatten(0, 1), labels.flatten(), num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)


class ClassificationHead(nn.Module):
    """A layer and the projection to the classes."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.classifier_size)
        self.activation = ACTIVATIONS[config.classifier_activation]
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.out_proj = nn.Linear(config.classifier_size, config.num_labels)

    def forward(self, x):
        """`(B, D)`."""
        return self.out_proj(self.dropout(self.activation(self.dense(self.dropout(x)))))


class LinearAttentionForSequenceClassification(LinearAttentionPreTrainedModel):
    """A RoBERTa encoder with a classification head on the first token."""

    accepts_loss_kwargs = False  # `Trainer` divides the mean over each batch by their number

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = LinearAttentionModel(config)
        self.classifier = ClassificationHead(config)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, labels=None, inputs_embeds=None, **options):
        """`labels: (B,)`: classes, or floating targets where there is one output."""
        found = self.model(input_ids, attention_mask, inputs_embeds=inputs_embeds, **options)
        first = padding_before(real_tokens(self.config, input_ids, attention_mask, inputs_embeds))
        x = found.last_hidden_state[torch.arange(len(first), device=first.device), first]
        logits, loss = self.classifier(x), None
        if labels is not None and self.num_labels == 1:
            loss = F.mse_loss(logits[:, 0].float(), labels.float())
        elif labels is not None:
            loss = F.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=found.hidden_states)
