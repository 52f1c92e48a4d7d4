"""What training with carried state gains or costs: test read in samples apart, and with state."""

from argparse import Namespace
from typing import Any

from pipeline.evaluation.carried_perplexity import evaluate_carried
from pipeline.evaluation.evaluators import TrainedRun
from pipeline.evaluation.perplexity import evaluate
from pipeline.evaluation.unigram import unigram_bits
from pipeline.training.checkpoint import read_checkpoint

STREAMS, READ_AT_ONCE = 8, 256
FIGURES = ("loss_nats_per_token", "perplexity_per_token", "perplexity_per_word", "tokens")


def measure_run(run: TrainedRun) -> dict[str, Any]:
    """What a study records of a language model; `unigram_perplexity` is that of token frequencies alone."""
    checkpoint = read_checkpoint(run.checkpoint)
    reading = Namespace(streams=STREAMS, segment=READ_AT_ONCE, reset_at_documents=False)
    apart = evaluate(checkpoint, run.data, "test")
    carried = evaluate_carried(checkpoint, run.data, "test", reading, {})
    return {
        "parameters": apart["parameters"],
        "apart": {key: apart[key] for key in FIGURES},
        "carried": {key: carried[key] for key in (*FIGURES, "streams", "longest", "buckets", "remark")},
        "unigram_perplexity": 2 ** unigram_bits(run.data, "test"),
    }
