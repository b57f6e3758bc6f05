"""KerasHub's own tests of a backbone and of a task, on small models of this project.

They run where the extra `keras-hub` is installed.
"""

import numpy as np
import pytest

from tests.small_models import SEGMENT_LENGTH, VOCABULARY_SIZE, toy_experiment
from txl_tf.models.stateful import StatefulTransformerXL

keras_hub = pytest.importorskip("keras_hub")
test_case = pytest.importorskip("keras_hub.src.tests.test_case")

# KerasHub's test shuffles what cannot be shuffled, and its task has a `compile` of its own.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:`compile..` was not called as part of:UserWarning"),
    pytest.mark.filterwarnings("ignore:The `check_types` argument:DeprecationWarning"),
]
_ROWS = 2
_CONFIG = toy_experiment(model={"num_layers": 1, "memory_length": 7}).model
_TOKEN_IDS = np.random.default_rng(3).integers(0, VOCABULARY_SIZE, (_ROWS, SEGMENT_LENGTH))


def test_stateful_model_passes_the_test_of_a_backbone():
    test_case.TestCase("run_backbone_test").run_backbone_test(
        StatefulTransformerXL,
        init_kwargs={"config": _CONFIG, "batch_size": _ROWS},
        input_data=_TOKEN_IDS,
        expected_output_shape=(_ROWS, SEGMENT_LENGTH, VOCABULARY_SIZE),
        # Log-probabilities are float32 whatever the policy; the check wants the compute dtype.
        run_mixed_precision_check=False,
    )
