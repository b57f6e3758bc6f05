"""Helpers that build an evaluator of a model, and that collect the nats of every token."""

import numpy as np

from tests.small_models import arrays_of, strategy_of
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator


def evaluator_of(model, jit_compile=False, replicas=1, masks_documents=False, **settings):
    evaluator = Evaluator(
        model.config,
        EvaluationConfig(**settings),
        jit_compile=jit_compile,
        masks_documents=masks_documents,
        strategy=strategy_of(replicas),
    )
    evaluator.load_arrays(arrays_of(model))
    return evaluator


def nats_of(evaluator, text, **options):
    """Returns the result of an evaluation, and the nats of every token."""
    nats = np.full(text.num_tokens, np.nan)
    return evaluator.evaluate(text, step=17, observe=nats.__setitem__, **options), nats
