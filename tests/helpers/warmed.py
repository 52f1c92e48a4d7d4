"""The last import of a process that commands are forked from: what each of them would do for itself."""

import gc

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import user_dir  # noqa: F401  (registers the architecture)
from tests.helpers import registry

registry.share()
# hydra's parser gets to know its grammar, which takes it as long as a tiny training, and the usual options.
_words = ["nowhere", "--task", "language_modeling", "--arch", "transnormer_t1", "--lr", "0.1"]
convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), _words))
gc.freeze()  # so that no collection in a fork walks through the modules, and copies their pages
