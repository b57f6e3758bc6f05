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
    drawn = np.random.default_rng(0).integers(97, 123, (len(lengths), max(lengths)))
    texts = [bytes(drawn[n, :length].tolist()).decode() for n, length in enumerate(lengths)]
    examples = [Example(name=str(n), where="", texts=(text,)) for n, text in enumerate(texts)]
    return ExampleEncoder(TASK, ByteTokenizer()).encode(examples)


@pytest.mark.slow
def test_few_programs_answer_texts_of_all_lengths_as_before(evaluator):
    examples = encoded(range(1, 29))
    expected = evaluator.outputs(examples)
    before = evaluator._function.experimental_get_tracing_count()
    for count in range(1, 29):
        outputs = evaluator.outputs(encoded(range(1, count + 1)), rounds_sizes=True)
        assert len(outputs) == count and np.abs(outputs[-1]).max() > 1e-3
    for one, other in zip(evaluator.outputs(examples, rounds_sizes=True), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    # 1, 2 and 3 rows; 1, 2, 4 and 8 segments, of which 1 and 2 texts have one.
    assert evaluator._function.experimental_get_tracing_count() - before <= 6
