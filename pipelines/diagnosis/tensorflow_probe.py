"""Tries TensorFlow in a process of its own: `python -m pipelines.diagnosis.tensorflow_probe`.

A broken installation may end the process or hang; then what was printed last
says where. The request, an object, is read from the standard input; each stage
prints one line of JSON when it begins and one when it has ended.
"""

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # It is imported by a stage of its own.
    import tensorflow as tf

# The CPU can be split only before TensorFlow has run an operation on it.
STAGES = ("import", "devices", "folders", "all_reduce", "text")
"""What is tried, in this order. A stage that fails does not keep the next from being tried,
unless the process ends or TensorFlow cannot be imported."""
# Two replicas are enough to see whether they are added up.
_NUM_CPU_REPLICAS = 2


def main(request: dict[str, Any]) -> None:
    """Runs the stages.

    Args:
        request: dict with `tpu`, an optional str, and `folders`, a list of
            remote folders.
    """
    stages: dict[str, Callable[[], Any]] = {
        "import": _import,
        "devices": _devices,
        "folders": lambda: _folders(request["folders"]),
        "all_reduce": lambda: _all_reduce(request["tpu"]),
        "text": _text,
    }
    for stage in STAGES:
        _say({"stage": stage})
        try:
            result = {"result": stages[stage]()}
        # Whatever it is, it is what the user has to be told.
        except Exception as error:
            result = {"error": _text_of(error), "exit_code": getattr(error, "exit_code", None)}
        _say({"stage": stage, **result})
        if stage == "import" and "error" in result:
            return


def _import() -> str:
    import keras
    import tensorflow as tf

    return f"TensorFlow {tf.__version__}, Keras {keras.__version__} on {keras.backend.backend()}"


def _text() -> int:
    import tensorflow_text

    # The operation itself is called: its library is loaded apart from the module.
    return int(tensorflow_text.WhitespaceTokenizer().tokenize(["two words"]).shape[0])


def _devices() -> dict[str, int]:
    import tensorflow as tf

    devices = tf.config.list_physical_devices()
    kinds = [device.device_type for device in devices]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def _folders(folders: list[str]) -> list[dict[str, Any]]:
    from .machine_checks import check_folder

    return [check_folder(folder).to_dict() for folder in folders]


def _all_reduce(tpu: str | None) -> dict[str, Any]:
    """Checks that an all-reduce gives every replica the sum of all numbers."""
    import tensorflow as tf

    from txl_tf.distribution.strategy import create_strategy

    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    is_alone = tpu is None and not kinds & {"GPU", "TPU"}
    strategy = create_strategy(tpu, _NUM_CPU_REPLICAS if is_alone else 1)

    sums = strategy.experimental_local_results(sum_of_replicas(strategy)())
    return {
        "strategy": type(strategy).__name__,
        "num_replicas": strategy.num_replicas_in_sync,
        "sums": [float(value) for value in sums],
    }


def sum_of_replicas(strategy: "tf.distribute.Strategy") -> Callable[[], Any]:
    """Builds the compiled function that all-reduces a number over the replicas.

    Returns:
        Function that returns for each replica the sum of the numbers of all,
        counted from 1.
    """
    import tensorflow as tf

    def add_up() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number + 1.0)

    # A TPU names its program after the function, so it must have a name.
    def add_up_on_replicas() -> Any:
        return strategy.run(add_up)

    return tf.function(add_up_on_replicas, autograph=False)


def _text_of(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
