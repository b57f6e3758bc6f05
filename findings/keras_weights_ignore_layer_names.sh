#!/usr/bin/env bash
# A .weights.h5 file goes to layers by class and order, not by their names.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: Layers of a Functional model are stored as dense, dense_1 and so on, in the order of
#            the graph. Named layers of one shape that are reached in another order get each other's
#            weights, and nothing is said. A dict of layers is stored by position too, without its
#            keys.
# Source:    _save_container_state and _load_container_state in keras/src/saving/saving_lib.py.
# Seen:      groups of the file: dense, dense_1, input_layer. The loaded layer 'query' has the
#            kernel of 'key'.
set -euo pipefail

packages="tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import h5py
import keras
import numpy as np


def model(names):
    inputs = keras.Input((3,))
    layers = [keras.layers.Dense(3, name=name) for name in names]
    return keras.Model(inputs, [layer(inputs) for layer in layers])


class Heads(keras.Model):
    def __init__(self, names):
        super().__init__()
        self.heads = {name: keras.layers.Dense(3) for name in names}

    def call(self, inputs):
        return {name: head(inputs) for name, head in self.heads.items()}


def kernel(layer):
    return layer.kernel.numpy()


saved, loaded = model(["query", "key"]), model(["key", "query"])
saved.save_weights("named.weights.h5")
loaded.load_weights("named.weights.h5")
with h5py.File("named.weights.h5") as file:
    groups = sorted(file["layers"])
is_other = np.array_equal(kernel(loaded.get_layer("query")), kernel(saved.get_layer("key")))
print("groups of the file:", *groups)
print("the loaded query has the kernel of key:", is_other)

saved, loaded = Heads(["left", "right"]), Heads(["right", "left"])
for each in (saved, loaded):
    each(np.ones((1, 3), "float32"))
saved.save_weights("dict.weights.h5")
loaded.load_weights("dict.weights.h5")
is_other_head = np.array_equal(kernel(loaded.heads["left"]), kernel(saved.heads["right"]))
print("the loaded left head has the kernel of the right one:", is_other_head)

assert groups == ["dense", "dense_1", "input_layer"]
assert is_other and is_other_head
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
