#!/usr/bin/env bash
# Adafactor turns a kernel into NaN if its gradient has a zero row and a zero column.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: The second moment is the product of the means of rows and columns. For a row and a
#            column of zeros both are near epsilon_1 = 1e-30, their product is 0 in float32, and 0 /
#            sqrt(0) is NaN. The update is scaled by its own norm, so the whole kernel becomes NaN
#            in one step. An input that is absent from a batch beside a ReLU that is off suffices.
# Source:    Adafactor.update_step in keras/src/optimizers/adafactor.py.
# Seen:      kernel after one step: 12 of 12 values NaN; with a gradient without zero column: 0 of
#            12.
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


def num_nan(biases):
    """Values of the kernel that are NaN after one step; the fourth input is 0 in all rows."""
    layer = keras.layers.Dense(3, activation="relu")
    model = keras.Sequential([keras.Input((4,)), layer])
    layer.set_weights([np.full((4, 3), 0.5, "float32"), np.array(biases, "float32")])
    model.compile(keras.optimizers.Adafactor(0.01), "mse")
    one_hot = np.eye(4, dtype="float32")[[0, 1, 2, 0]]
    model.fit(one_hot, np.ones((4, 3)), verbose=0)
    return int(np.isnan(layer.kernel).sum())


seen = {"a unit is off": num_nan([0, 0, -9]), "all units are on": num_nan([0, 0, 0])}
for name, number in seen.items():
    print(f"{name}: {number} of 12 values are NaN after one step")

assert seen == {"a unit is off": 12, "all units are on": 0}
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
