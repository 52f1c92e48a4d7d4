"""The configuration of an exported linear-attention Transformer."""

from transformers import PretrainedConfig


class LinearAttentionConfig(PretrainedConfig):
    """The content of config.json; `plan` names the attentions of each layer, summed if several.

    `attention_options` has the options of each attention by its name, as the training calls them; `places`
    the number of each layer in training, from 0, and how many there were.
    """

    model_type = "linear_attention"

    def __init__(
        self,
        vocab_size=32,
        hidden_size=16,
        num_attention_heads=2,
        plan=(("norm",),),
        places=None,
        causal=True,
        attention_options=None,
        feed_forward="glu",
        feed_forward_size=32,
        feed_forward_activation="silu",
        feed_forward_bias=True,
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
        self.places = places or [[number, len(self.plan)] for number in range(len(self.plan))]
        self.attention_options = attention_options or {}
        super().__init__(**{name: given[name] for name in passed_on}, **others)
        for name in passed_on:
            setattr(self, name, given[name])
