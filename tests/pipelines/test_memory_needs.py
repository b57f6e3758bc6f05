"""What jobs take at least: formulas held against models, and against what they replace."""

import pytest

from pipelines.arguments import load_experiment
from pipelines.memory_needs import training_needs
from tests.pipelines.conftest import EXPERIMENT
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.models import create_model
from txl_tf.models.sizes import equal_memory_segment_length, num_parameters, training_memory_bytes

SMALL = ExperimentConfig.from_dict(EXPERIMENT)


def total(needs):
    return sum(need.num_bytes for need in needs)


@pytest.mark.parametrize("config_class", [LSTMConfig, QRNNConfig])
@pytest.mark.parametrize("embedding_dim", [None, 5])
@pytest.mark.parametrize("num_layers", [1, 3])
def test_parameters_of_recurrent_models_are_counted(config_class, embedding_dim, num_layers):
    config = config_class(
        vocabulary_size=11,
        num_layers=num_layers,
        hidden_dim=7,
        segment_length=3,
        embedding_dim=embedding_dim,
    )
    assert num_parameters(config) == create_model(config).count_params()


def test_weights_are_counted_once_per_replica_with_gradients_and_optimizer():
    weights = 4 * num_parameters(SMALL.model)
    for optimizer, copies in (("adam", 4), ("sgd", 2), ("adafactor", 2)):
        changed = SMALL.with_overrides([f"optimizer.name={optimizer}"])
        for replicas in (1, 2):
            assert training_needs(changed, replicas)[0].num_bytes == replicas * copies * weights


def test_the_least_that_is_needed_is_no_more_than_the_estimate():
    for name in ("quickstart", "enwik8_base", "lm1b_large", "penn_treebank"):
        experiment = load_experiment(name, ["model.cutoffs=[]"])
        estimate = training_memory_bytes(experiment)
        assert 0.3 * estimate < total(training_needs(experiment)) < 1.3 * estimate


def test_a_segment_of_equal_memory_is_the_longest_that_fits():
    for batch in (1, 3, 17):
        reference = SMALL.with_overrides([f"training.global_batch_size={batch}"])
        candidate = SMALL.with_overrides(["model.recurrence=false", "model.memory_length=0"])
        budget = training_memory_bytes(reference)

        def fits(length, candidate=candidate, budget=budget):
            model = candidate.model.replace(segment_length=length)
            return training_memory_bytes(candidate.replace(model=model)) <= budget

        by_hand = next(length for length in range(1, 1000) if not fits(length)) - 1
        if by_hand == 0:
            with pytest.raises(ValueError, match="at any segment length"):
                equal_memory_segment_length(reference, candidate)
        else:
            assert equal_memory_segment_length(reference, candidate) == by_hand
