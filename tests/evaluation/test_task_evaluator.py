"""Outputs of a model with the head of a task."""

import numpy as np
import pytest

from tests.small_models import small_config, with_drawn_weights
from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import EvaluationConfig, TaskConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.evaluation.task_evaluator import TaskEvaluator
from txl_tf.tasks.encoding import ExampleEncoder
from txl_tf.tasks.examples import Example

TASK = TaskConfig(kind="classification", labels=("no", "yes"), metric="accuracy")


@pytest.mark.slow
def test_the_outputs_of_a_text_do_not_depend_on_the_texts_beside_it():
    model, evaluation = small_config(4, 4, vocabulary_size=256), EvaluationConfig(batch_size=3)
    experiment = toy_experiment().replace(model=model, task=TASK, evaluation=evaluation)
    evaluator = TaskEvaluator(experiment)
    with_drawn_weights(evaluator.model.language_model, 0.5)
    with_drawn_weights(evaluator.model.head, 0.5)

    def outputs_of(lengths):
        texts = ["abcdefg, hijklmno, pqrstuvw."[:length] for length in lengths]
        examples = [Example(name=text, where="", texts=(text,)) for text in texts]
        return evaluator.outputs(ExampleEncoder(TASK, ByteTokenizer()).encode(examples))

    together = outputs_of(range(1, 29))
    for length in (1, 5, 28):
        np.testing.assert_allclose(outputs_of([length])[0], together[length - 1], atol=1e-5)
