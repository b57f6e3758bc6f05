"""What jobs take at least: formulas held against models, and against what they replace."""

import pytest

from pipelines.run import memory_needs
from pipelines.run.memory_needs import require_memory, training_needs
from tests.pipelines.conftest import EXPERIMENT
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.errors import UsageError
from txl_tf.models import create_model
from txl_tf.models.sizes import num_parameters

SMALL = ExperimentConfig.from_dict(EXPERIMENT)


@pytest.mark.parametrize("embedding_dim", [None, 5])
@pytest.mark.parametrize("config_class", [LSTMConfig, QRNNConfig])
def test_parameters_of_recurrent_models_are_counted(config_class, embedding_dim):
    sizes = {"vocabulary_size": 11, "num_layers": 3, "hidden_dim": 7, "segment_length": 3}
    config = config_class(**sizes, embedding_dim=embedding_dim)
    assert num_parameters(config) == create_model(config).count_params()


def test_weights_are_counted_once_per_replica_with_gradients_and_optimizer():
    weights = 4 * num_parameters(SMALL.model)
    for optimizer, copies in (("adam", 4), ("sgd", 2)):
        changed = SMALL.with_overrides([f"optimizer.name={optimizer}"])
        for replicas in (1, 2):
            assert training_needs(changed, replicas)[0].num_bytes == replicas * copies * weights


def test_more_than_the_machine_has_is_refused_with_both_numbers():
    need = memory_needs.MemoryNeed("weights", 3 * memory_needs.available_bytes(), "model.x=1")
    with pytest.raises(UsageError, match=r"need at least .* GiB of .* the weights; .* GiB are"):
        require_memory("Training", need)


def test_the_limit_of_a_control_group_counts(monkeypatch, tmp_path):
    limit, usage = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000000\n")
    usage.write_text("400000\n")
    monkeypatch.setattr(memory_needs, "_CONTROL_GROUP", (limit, usage))

    assert memory_needs.available_bytes() == 600_000

    limit.write_text("max\n")
    assert memory_needs.available_bytes() > 1 << 30
