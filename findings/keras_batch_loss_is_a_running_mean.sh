#!/usr/bin/env bash
# The batch_loss that Keras shows in TensorBoard is the mean since the epoch began.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: Logs of on_train_batch_end are results of the metrics, which are reset at each epoch.
#            TensorBoard(update_freq=1) writes them as batch_loss. In an epoch of many steps, as
#            language models have, the curve lags far behind and jumps at each epoch; a spike of one
#            batch hardly shows.
# Source:    Trainer.train_step in keras/src/backend/tensorflow/trainer.py returns compute_metrics;
#            TensorBoard.on_train_batch_end in keras/src/callbacks/tensorboard.py.
# Seen:      losses of the batches 0 1 4 9; batch_loss 0.000 0.500 1.667 3.500.
set -euo pipefail

packages="tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6 tensorboard==2.21.0"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import glob

import keras
import numpy as np
import tensorflow as tf

layer = keras.layers.Dense(1, kernel_initializer="zeros")
model = keras.Sequential([keras.Input((1,)), layer])
model.compile(keras.optimizers.SGD(0.0), "mse")
# The model answers 0, so the loss of a batch is the square of its target.
targets = np.arange(4.0)[:, None]
data = tf.data.Dataset.from_tensor_slices((np.zeros((4, 1)), targets)).batch(1)
callback = keras.callbacks.TensorBoard("logs", update_freq=1)
model.fit(data, verbose=0, callbacks=[callback])

seen = []
(path,) = glob.glob("logs/train/events*")
for record in tf.data.TFRecordDataset(path):
    event = tf.compat.v1.Event.FromString(record.numpy())
    for value in event.summary.value:
        if value.tag == "batch_loss":
            seen.append(float(tf.make_ndarray(value.tensor)))
print("losses of the batches:", *np.square(targets[:, 0]))
print("batch_loss:", *(f"{each:.3f}" for each in seen))

np.testing.assert_allclose(seen, [0, 1 / 2, 5 / 3, 14 / 4], rtol=1e-6)
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
