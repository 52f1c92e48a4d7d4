"""Measures one case of the speech encoders' cost in its own process; started by `speech_cost.py`.

Same interface as `lm_cost_worker.py`.
"""

from functools import partial

from benchmarks.workers.lm_cost_worker import main, measure_training
from benchmarks.workers.speech_models import SpeechModel

MEASURES = {"training": partial(measure_training, build=SpeechModel)}

if __name__ == "__main__":
    main(MEASURES)
