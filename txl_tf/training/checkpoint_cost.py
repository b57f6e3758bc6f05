"""Size and time of a checkpoint, computed from the configuration.

A machine that is taken away gives notice, 30 s on a spot VM. What is not in the
store by then is lost, and with it the steps since the checkpoint before.
"""

import dataclasses

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.models.sizes import num_parameters

NOTICE_SECONDS = 30.0
"""What a spot VM is given."""
# The client sends one stream to a store; 10 GB took it between one and two minutes.
UPLOAD_BYTES_PER_SECOND = 100e6
_FLOAT_BYTES = 4
# Copies of each weight that an optimizer keeps; Adafactor keeps sums over rows and columns, and
# Muon one copy of kernels and two of all else.
_OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "lamb": 2, "adafactor": 0, "muon": 2, "sgd": 1}


@dataclasses.dataclass(frozen=True)
class CheckpointCost:
    """Size and time of one checkpoint.

    Args:
        num_bytes: int. Size of its file, an upper estimate.
        upload_seconds: float. Time to send it to a store.
    """

    num_bytes: int
    upload_seconds: float

    @property
    def local_bytes(self) -> int:
        """Room that it takes on the local disk: the client writes all of it to `/tmp` first."""
        return self.num_bytes

    @property
    def fits_notice(self) -> bool:
        """Whether it is in the store before a spot VM is gone."""
        return self.upload_seconds <= NOTICE_SECONDS

    def to_dict(self) -> dict[str, object]:
        """Returns the figures, as JSON can hold them."""
        return {
            "bytes": self.num_bytes,
            "local_bytes": self.local_bytes,
            "upload_seconds": self.upload_seconds,
            "fits_notice": self.fits_notice,
        }

    @classmethod
    def of(cls, experiment: ExperimentConfig) -> "CheckpointCost":
        """Computes the cost of an experiment's checkpoints.

        Args:
            experiment: `ExperimentConfig`.

        Returns:
            The `CheckpointCost`.
        """
        training = experiment.training
        copies = 1 + _OPTIMIZER_COPIES[experiment.optimizer.name]
        if experiment.optimizer.name == "sgd" and not experiment.optimizer.momentum:
            copies -= 1
        copies += training.average_weights_from_step is not None
        num_bytes = copies * num_parameters(experiment.model) * _FLOAT_BYTES
        num_bytes += training.global_batch_size * _memory_bytes(experiment)
        return cls(num_bytes, num_bytes / UPLOAD_BYTES_PER_SECOND)


def _memory_bytes(experiment: ExperimentConfig) -> int:
    """Returns the memory of one row."""
    model = experiment.model
    if not isinstance(model, ModelConfig):
        return 0  # some vectors, beside weights of millions
    width = 2 if experiment.training.dtype_policy == "mixed_bfloat16" else _FLOAT_BYTES
    return model.num_layers * model.memory_length * model.hidden_dim * width
