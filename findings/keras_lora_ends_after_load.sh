#!/usr/bin/env bash
# Adapters of LoRA learn nothing more after load_weights.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: save_weights merges the two factors into the kernel. load_weights, into a layer whose
#            LoRA is enabled, sets both factors to zero. The gradient of each is a product with the
#            other, so with a new optimizer both stay zero, only biases are trained, and nothing is
#            said. Restored moments of Adam would move them again.
# Source:    Dense.load_own_variables in keras/src/layers/core/dense.py; EinsumDense and BaseConv do
#            the same.
# Seen:      factors of the run that continued: 0.0 and 0.0 after 20 epochs; its loss 1.22 -> 1.21,
#            where the unbroken run goes 1.13 -> 0.33.
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


def model():
    layer = keras.layers.Dense(4)
    made = keras.Sequential([keras.Input((4,)), layer])
    layer.enable_lora(2)
    return made, layer


def losses_of(trained, epochs):
    return trained.fit(inputs, targets, epochs=epochs, verbose=0).history["loss"]


keras.utils.set_random_seed(0)
inputs = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
targets = inputs[:, ::-1].copy()

unbroken, _ = model()
unbroken.compile(keras.optimizers.Adam(0.05), "mse")
losses_of(unbroken, epochs=3)
unbroken.save_weights("three_epochs.weights.h5")
continued, layer = model()
continued.load_weights("three_epochs.weights.h5")
continued.compile(keras.optimizers.Adam(0.05), "mse")
same_outputs = np.allclose(unbroken(inputs), continued(inputs), atol=1e-6)

losses = {}
for name, each in (("unbroken", unbroken), ("continued", continued)):
    losses[name] = losses_of(each, epochs=20)
    print(f"{name}: loss {losses[name][0]:.2f} -> {losses[name][-1]:.2f}")
factors = [float(np.abs(each).max()) for each in (layer.lora_kernel_a, layer.lora_kernel_b)]
print("largest values of the factors that continued:", *factors)

assert same_outputs
assert factors == [0.0, 0.0]
assert losses["unbroken"][-1] < 0.5 * losses["unbroken"][0]
assert losses["continued"][-1] > 0.95 * losses["continued"][0]
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
