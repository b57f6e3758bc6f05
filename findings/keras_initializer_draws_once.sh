#!/usr/bin/env bash
# One initializer for several layers starts them with the same weights.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: An initializer object draws its seed when it is made, also without seed=, and returns
#            the same numbers for each tensor of a shape. So layers that share one, as by
#            `initializer = TruncatedNormal(stddev=0.02)`, start equal; a name ('truncated_normal')
#            draws anew. MultiHeadAttention clones its initializer, but a clone keeps a given seed:
#            query, key and value start equal.
# Source:    RandomInitializer.__init__ in keras/src/initializers/random_initializers.py, and the
#            documentation of seed there; MultiHeadAttention._get_common_kwargs_for_sublayer.
# Seen:      equal kernels: shared object True, name False, query and key of a seeded
#            MultiHeadAttention True, of an unseeded one False.
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

keras.utils.set_random_seed(0)


def equal_layers(initializer):
    first, second = (keras.layers.Dense(4, kernel_initializer=initializer) for _ in range(2))
    first.build((None, 4))
    second.build((None, 4))
    return np.array_equal(first.kernel, second.kernel)


def equal_projections(**seed):
    initializer = keras.initializers.TruncatedNormal(stddev=0.02, **seed)
    layer = keras.layers.MultiHeadAttention(2, 3, kernel_initializer=initializer)
    layer.build((None, 2, 6), (None, 2, 6))
    kernels = {weight.path.split("/", 1)[1]: weight.numpy() for weight in layer.weights}
    return np.array_equal(kernels["query/kernel"], kernels["key/kernel"])


seen = {
    "two layers, one object": equal_layers(keras.initializers.TruncatedNormal(stddev=0.02)),
    "two layers, a name": equal_layers("truncated_normal"),
    "query and key, seed=1": equal_projections(seed=1),
    "query and key, no seed": equal_projections(),
}
for name, is_equal in seen.items():
    print(f"{name}: equal {is_equal}")

assert list(seen.values()) == [True, False, True, False]
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
