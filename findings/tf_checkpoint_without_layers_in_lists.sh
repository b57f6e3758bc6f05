#!/usr/bin/env bash
# tf.train.Checkpoint leaves out the layers that a Keras 3 model has in a list.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: Layers in a Python list or dict of a subclassed Keras 3 model are no part of the
#            checkpoint. After restore they keep the values that they were made with, and
#            assert_consumed passes. Layers that are attributes are saved.
# Source:    KerasAutoTrackable in keras/src/backend/tensorflow/trackable.py: TensorFlow does not
#            track a TrackedList. Keras 2 had a wrapper of lists for it.
# Seen:      the checkpoint has first/_kernel and first/bias alone; of the six variables the two
#            kernels of the list differ after restore (biases are zero in both).
set -euo pipefail

packages="tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import keras
import numpy as np
import tensorflow as tf


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3)
        self.blocks = [keras.layers.Dense(3) for _ in range(2)]

    def call(self, inputs):
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


inputs = np.ones((1, 3), "float32")
saved, restored = Model(), Model()
saved(inputs), restored(inputs)
path = tf.train.Checkpoint(model=saved).save("checkpoint")
status = tf.train.Checkpoint(model=restored).restore(path)
status.assert_consumed()
status.assert_existing_objects_matched()

names = [name for name, _ in tf.train.list_variables(path) if name.startswith("model/")]
differ = [
    variable.path
    for variable, other in zip(restored.weights, saved.weights)
    if not np.array_equal(variable, other)
]
print("in the checkpoint:", *(name.split("/.")[0] for name in names))
print("differ after restore:", *differ)

assert len(saved.weights) == 6
assert len(names) == 2 and all("/first/" in name for name in names)
assert len(differ) == 2 and all("kernel" in path for path in differ)
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
