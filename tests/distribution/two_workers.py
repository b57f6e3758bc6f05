"""One of two workers; prints what it found as a line of JSON.

TF_CONFIG=... python -m tests.distribution.two_workers
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np

from txl_tf.distribution.preemption import PreemptionWatcher

ROWS_PER_REPLICA = 2
NUM_ROWS = 3


def started(words, **options):
    """Starts the same command as each of two workers of one cluster; returns the processes."""
    addresses = free_addresses(2)
    environments = [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(2)
    ]
    return [
        subprocess.Popen(
            words,
            env={**os.environ, "TF_CONFIG": json.dumps(cluster), "PYTHONWARNINGS": "ignore"},
            text=True,
            **options,
        )
        for cluster in environments
    ]


def free_addresses(count):
    """Addresses on this machine that nobody listens at."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
    return addresses


def arrays():
    """A state of three rows, with values that arithmetic would not leave alone."""
    import tensorflow as tf

    numbers = np.arange(NUM_ROWS * 4, dtype="float32").reshape(NUM_ROWS, 4)
    numbers[0, 0], numbers[1, 1] = -0.0, np.float32(1e-42)
    return {
        "float32": numbers,
        "bfloat16": tf.cast(numbers - 5.5, tf.bfloat16).numpy(),
        "int32": np.array([2**31 - 1, -(2**31), 7], "int32"),
        "bool": np.array([True, False, True]),
    }


def exchange(strategy):
    """Takes up a state, changes it per replica, and gathers it."""
    import tensorflow as tf

    from txl_tf.distribution.replica_state import ReplicaState

    given = arrays()
    specs = {
        name: tf.TensorSpec(array.shape[1:], tf.as_dtype(array.dtype))
        for name, array in given.items()
    }
    state = ReplicaState(strategy, ROWS_PER_REPLICA, specs, num_rows=NUM_ROWS)
    begins_with_zeros = not any(np.any(array) for array in state.to_global().values())
    state.from_global(given)
    returned = state.to_global()
    local = strategy.experimental_local_results(strategy.run(tf.function(state.read)))

    @tf.function
    def add_replica_number():
        values = state.read()
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        state.write(values | {"float32": values["float32"] + 100.0 * tf.cast(number, tf.float32)})

    strategy.run(add_replica_number)
    return {
        "begins_with_zeros": begins_with_zeros,
        "is_returned": {
            name: array.dtype == given[name].dtype and array.tobytes() == given[name].tobytes()
            for name, array in returned.items()
        },
        "own_rows": local[0]["int32"].numpy().tolist(),
        "changed": state.to_global()["float32"][:, 3].tolist(),
    }


def main():
    asked_to_stop = threading.Event()
    with PreemptionWatcher(asked_to_stop.set) as watcher:
        from txl_tf.distribution.strategy import create_strategy, is_chief, num_workers

        strategy = create_strategy()
        found = {
            "num_workers": num_workers(strategy),
            "is_chief": is_chief(strategy),
            "num_replicas": strategy.num_replicas_in_sync,
            **exchange(strategy),
        }
        # TensorFlow's own handler must not have taken the place of the watcher's.
        os.kill(os.getpid(), signal.SIGTERM)
        found["notices_sigterm"] = asked_to_stop.wait(10.0) and watcher.requested
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
