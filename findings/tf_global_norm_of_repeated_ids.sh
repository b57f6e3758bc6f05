#!/usr/bin/env bash
# The global norm of an embedding's gradient is too small where a batch repeats an id.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: The gradient of a lookup is an IndexedSlices with a row for each occurrence.
#            tf.linalg.global_norm squares these rows and not their sum, so does Keras for
#            global_clipnorm and clipnorm. An id that occurs n times alike counts sqrt(n) times, not
#            n times, and the update is longer than the limit.
# Source:    tf.linalg.global_norm in tensorflow/python/ops/clip_ops.py takes t.values; global_norm
#            in keras/src/optimizers/base_optimizer.py squares the slices.
# Seen:      an id four times in a batch: norm 2.83 by slices, 5.66 by the dense gradient. SGD at
#            rate 1 with global_clipnorm=1.0 makes a step of length 2.0.
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

IDS = [1, 1, 1, 1]

table = tf.Variable(tf.ones((5, 2)))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(tf.gather(table, IDS))
gradient = tape.gradient(loss, table)
by_slices = float(tf.linalg.global_norm([gradient]))
dense = float(tf.linalg.global_norm([tf.convert_to_tensor(gradient)]))
print(f"{type(gradient).__name__}: norm {by_slices:.2f}, of the dense gradient {dense:.2f}")


def step_length(**limit):
    """Length of the first step of SGD from a table of zeros."""
    embedding = keras.layers.Embedding(5, 2, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((4,), dtype="int32"), embedding])
    model.compile(keras.optimizers.SGD(1.0, **limit), loss=lambda _, rows: tf.reduce_sum(rows))
    model.fit(np.array([IDS]), np.zeros((1, 4, 2)), verbose=0)
    return float(np.linalg.norm(embedding.embeddings))


lengths = {name: step_length(**{name: 1.0}) for name in ("global_clipnorm", "clipnorm")}
print("length of a step whose limit is 1:", lengths)

assert np.isclose(by_slices, np.sqrt(8)) and np.isclose(dense, np.sqrt(32))
assert np.allclose(list(lengths.values()), 2.0, atol=1e-3)
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
