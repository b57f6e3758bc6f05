#!/usr/bin/env bash
# Adding positions drops the mask of an embedding, and padding is attended to.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0
# Behaviour: Embedding(mask_zero=True) attaches a mask. x + positions returns a tensor without one,
#            and so does keras.layers.Add if one of its inputs has none. MultiHeadAttention then
#            reads the padding, and nothing is said. Add keeps a mask only where all inputs have
#            one.
# Source:    Merge.compute_mask in keras/src/layers/merging/base_merge.py; operations have no masks,
#            only layers (Layer._set_mask_metadata in keras/src/layers/layer.py).
# Seen:      probability on the two padded keys of four: 0.00 without positions, 0.50 after + and
#            after Add.
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
ids = keras.Input((4,), dtype="int32")
embedded = keras.layers.Embedding(5, 2, mask_zero=True)(ids)
positions = keras.layers.Embedding(4, 2)(keras.ops.zeros_like(ids) + keras.ops.arange(4))

tensors = {
    "no positions": embedded,
    "+": embedded + positions,
    "Add": keras.layers.Add()([embedded, positions]),
    "Add of two with a mask": keras.layers.Add()([embedded, embedded]),
    "Dense": keras.layers.Dense(2)(embedded),
}
attention = keras.layers.MultiHeadAttention(num_heads=1, key_dim=2)
on_padding = {}
for name, tensor in tensors.items():
    _, scores = attention(tensor, tensor, return_attention_scores=True)
    probabilities = keras.Model(ids, scores)(np.array([[1, 2, 0, 0]]))
    on_padding[name] = float(np.sum(probabilities[0, 0, 0, 2:]))
    print(f"{name}: probability on the padded keys {on_padding[name]:.2f}")

dropped = [name for name, probability in on_padding.items() if probability > 0.2]
assert dropped == ["+", "Add"]
assert all(on_padding[name] < 1e-6 for name in on_padding if name not in dropped)
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
