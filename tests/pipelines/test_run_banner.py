"""The lines that a training run begins with."""

import re
import types

import tensorflow as tf

from pipelines.configs import NAMED_EXPERIMENTS
from pipelines.run_banner import start_banner
from pipelines.training_data import TrainingData
from pipelines.workdir import Workdir
from txl_tf.config.model import LSTMConfig
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.models.language_model import create_model
from txl_tf.models.sizes import num_embedding_parameters, num_parameters


def banner(name, strategy=None, num_tokens=90_000_000):
    experiment = NAMED_EXPERIMENTS[name]()
    plan = SegmentPlan(
        num_tokens=num_tokens,
        num_rows=experiment.training.global_batch_size,
        segment_length=experiment.model.segment_length,
    )
    strategy = strategy or tf.distribute.get_strategy()
    data = types.SimpleNamespace(plan=plan)
    data.describe_plan = lambda: TrainingData.describe_plan(data)
    return start_banner(experiment, data, strategy, Workdir("runs/a run"))


def test_it_says_size_devices_step_length_rate_and_place():
    text = re.sub(" +", " ", banner("quickstart"))
    experiment = NAMED_EXPERIMENTS["quickstart"]()
    num_weights = num_parameters(experiment.model)
    assert f"model {num_weights:,} parameters, {256 * 192:,} of them embeddings" in text
    assert "1 replica on CPU, float32" in text
    assert "64 rows x 32 tokens = 2,048 tokens" in text
    passes = experiment.training.num_steps * 2048 / 90_000_000
    assert f"825 steps, {passes:.3g} passes over 90,000,000 tokens" in text
    assert "0.004 (adam), 75 steps of warm-up, cosine to 8e-05" in text
    assert "\nrun runs/a run\n" in text
    assert text.endswith("tensorboard --logdir runs/a run/tensorboard")


def test_it_counts_the_replicas():
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert "2 replicas on CPU" in banner("quickstart", tf.distribute.MirroredStrategy(names))


def test_embeddings_are_those_of_the_model():
    config = LSTMConfig(vocabulary_size=11, hidden_dim=6, num_layers=1, segment_length=4)
    model = create_model(config)
    model(tf.zeros([1, 3], tf.int32), model.initial_memory(1))
    tables = [each for each in model.trainable_variables if each.shape == (11, config.table_dim)]
    assert num_embedding_parameters(config) == int(tables[0].shape.num_elements())
