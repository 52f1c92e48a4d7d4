"""The fairseq plugin: `--user-dir user_dir` makes its attentions, models and architectures available."""

from . import compat, errors, refusals

compat.apply()
refusals.apply()
errors.install_excepthook()

# After the repairs, since importing these registers them with fairseq.
from . import criterions, loading, models, optim, tasks  # noqa: E402, F401

models.vocabulary.keep_fingerprints()
loading.apply()
