"""Measures one case of the RoBERTa encoders' cost in its own process; started by `roberta_cost.py`.

Same interface as `lm_cost_worker.py`.
"""

from functools import partial

from benchmarks.workers.lm_cost_worker import main, measure_training
from benchmarks.workers.roberta_cost_models import MaskedLanguageModel

MEASURES = {"training": partial(measure_training, build=MaskedLanguageModel)}

if __name__ == "__main__":
    main(MEASURES)
