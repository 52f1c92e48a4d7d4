"""Measures one case of the attentions' cost in its own process; started by `attention_cost.py`.

Same interface as `lm_cost_worker.py`.
"""

from functools import partial

from benchmarks.workers.attention_operators import AttentionOperator
from benchmarks.workers.lm_cost_worker import main, measure_training

MEASURES = {"training": partial(measure_training, build=AttentionOperator)}

if __name__ == "__main__":
    main(MEASURES)
