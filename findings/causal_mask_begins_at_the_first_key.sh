#!/usr/bin/env bash
# A causal mask with more keys than queries hides the newest keys.
#
# Version:   Keras 3.15.1, TensorFlow 2.21.0, JAX 0.10.2
# Behaviour: With memory or a cache, the last of K keys belongs to the last of T queries. Keras'
#            MultiHeadAttention(use_causal_mask=True), keras.ops.dot_product_attention and
#            jax.nn.dot_product_attention (is_causal=True) align the mask at the first key: query 0
#            sees key 0 alone. A single new token then attends to the oldest key and never to
#            itself.
# Source:    MultiHeadAttention._compute_causal_mask in
#            keras/src/layers/attention/multi_head_attention.py; _apply_masks in
#            keras/src/backend/tensorflow/nn.py; dot_product_attention in jax/_src/nn/functions.py.
# Seen:      probabilities of one query over four keys: 1 0 0 0, three times.
set -euo pipefail

packages="tensorflow==2.21.0 keras==3.15.1 numpy==2.4.6 jax==0.10.2 jaxlib==0.10.2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import jax
import keras
import numpy as np

generator = np.random.default_rng(0)
query = generator.normal(size=(1, 1, 4)).astype("float32")
keys = generator.normal(size=(1, 4, 4)).astype("float32")

layer = keras.layers.MultiHeadAttention(num_heads=1, key_dim=4)
_, scores = layer(query, keys, use_causal_mask=True, return_attention_scores=True)

# The values are unit vectors, so the output is the probabilities.
one_head = query[:, :, None], keys[:, :, None], np.eye(4, dtype="float32")[None, :, None]
seen = {
    "keras.layers.MultiHeadAttention": scores,
    "keras.ops.dot_product_attention": keras.ops.dot_product_attention(*one_head, is_causal=True),
    "jax.nn.dot_product_attention": jax.nn.dot_product_attention(*one_head, is_causal=True),
}
for name, probabilities in seen.items():
    seen[name] = np.asarray(probabilities).reshape(4)
    print(f"{name}: {seen[name]}")

for probabilities in seen.values():
    np.testing.assert_allclose(probabilities, [1, 0, 0, 0], atol=1e-6)
EOF
KERAS_HOME=$folder KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
