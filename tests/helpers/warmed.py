"""The last import of a process that commands are forked from: work that each would do for itself."""

import gc

import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import user_dir  # noqa: F401  (registers the architecture)
from lab.provenance import measured_sources
from tests.helpers import registry
from user_dir.modules.linear_cross_entropy import linear_cross_entropy

LM = "--task language_modeling --criterion chunked_cross_entropy --lr-scheduler inverse_sqrt"
USUAL = (
    f"{LM} --arch transnormer_t1",
    f"{LM} --arch transformer_lm",
    "--task language_modeling --arch transnormer_t1 --criterion cross_entropy --lr-scheduler fixed",
    "--task masked_lm --arch roberta_transnormer_t1 --criterion chunked_masked_lm "
    "--lr-scheduler polynomial_decay --total-num-update 9",
    "--task sentence_prediction --arch roberta_transnormer_t1 --criterion sentence_prediction "
    "--lr-scheduler polynomial_decay --total-num-update 9",
)

registry.share()
# hydra's parser gets to know its grammar, which takes it as long as a tiny training, and the usual options.
for choices in USUAL:
    words = ["nowhere", "--optimizer", "adam", "--lr", "0.1", *choices.split()]
    convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), words))
measured_sources("lab")  # hashes each file once
nothing = torch.zeros(1, 1)
linear_cross_entropy(nothing, nothing, nothing[0].long(), ignore_index=1)  # registers torch's operator
gc.freeze()  # so that no collection in a fork walks through the modules, and copies their pages
