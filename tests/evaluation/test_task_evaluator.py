"""Outputs of a model with the head of a task, whatever is read beside a text."""

import numpy as np
import pytest

from tests.small_models import small_config, with_drawn_weights
from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import TaskConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.tasks.encoding import ExampleEncoder
from txl_tf.tasks.examples import Example

TASK = TaskConfig(kind="classification", labels=("no", "yes"), metric="accuracy")


@pytest.fixture(scope="module")
def evaluator():
    experiment = toy_experiment(training={"global_batch_size": 3, "jit_compile": False})
    model = small_config(4, 4, vocabulary_size=256)
    evaluator = TaskEvaluator(experiment.replace(model=model, task=TASK))
    with_drawn_weights(evaluator.model.language_model, 0.5)
    with_drawn_weights(evaluator.model.head, 0.5)
    return evaluator


def encoded(lengths):
    drawn = np.random.default_rng(0).integers(97, 123, (29, 28))
    texts = [bytes(drawn[length, :length].tolist()).decode() for length in lengths]
    examples = [Example(name=str(n), where="", texts=(text,)) for n, text in enumerate(texts)]
    return ExampleEncoder(TASK, ByteTokenizer()).encode(examples)


@pytest.mark.slow
def test_few_programs_answer_texts_of_all_lengths(evaluator):
    before = evaluator._function.experimental_get_tracing_count()
    expected = [evaluator.outputs(encoded([length]))[0] for length in range(1, 29)]
    for count in (1, 2, 5, 28):
        outputs = evaluator.outputs(encoded(range(1, count + 1)))
        assert len(outputs) == count and np.abs(outputs[-1]).max() > 1e-3
        np.testing.assert_allclose(outputs, expected[:count], atol=1e-5)
    # One row of 1, 2, 4 or 8 segments, two rows of 1, three of 2 or 8.
    assert evaluator._function.experimental_get_tracing_count() - before == 7
