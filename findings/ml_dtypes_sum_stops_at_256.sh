#!/usr/bin/env bash
# NumPy's sum and mean of bfloat16 arrays stop growing.
#
# Version:   ml_dtypes 0.6.0, NumPy 2.4.6, JAX 0.10.2
# Behaviour: The bfloat16 of ml_dtypes, which JAX and TensorFlow return to NumPy, is added in
#            bfloat16, one number after the other: 256 + 1 is 256. NumPy sums its own float16 in
#            float32, as JAX does bfloat16. So np.mean of weights or losses is wrong and jnp.mean of
#            the same array is right. Nothing is said.
# Source:    ml_dtypes gives NumPy a plain loop for `add` (ml_dtypes/_src/custom_float.h), and a
#            reduction repeats it; NumPy's pairwise sum is for its own types.
# Seen:      sum of 1,000 ones 256, mean 0.255859, cumsum 256; float16 1000; JAX 1000 and 1.
set -euo pipefail

packages="numpy==2.4.6 ml_dtypes==0.6.0 jax==0.10.2 jaxlib==0.10.2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import jax.numpy as jnp
import ml_dtypes
import numpy as np

ones = np.ones(1000, ml_dtypes.bfloat16)
seen = {
    "np.sum": float(ones.sum()),
    "np.mean": float(ones.mean()),
    "np.cumsum": float(np.cumsum(ones)[-1]),
    "np.sum of an array of JAX": float(np.asarray(jnp.ones(1000, jnp.bfloat16)).sum()),
    "np.sum of float16": float(ones.astype(np.float16).sum()),
    "np.mean in float32": float(ones.mean(dtype=np.float32)),
    "jnp.sum": float(jnp.asarray(ones).sum()),
    "jnp.mean": float(jnp.asarray(ones).mean()),
}
for name, value in seen.items():
    print(f"{name}: {value:g}")

assert list(seen.values()) == [256.0, 0.255859375, 256.0, 256.0, 1000.0, 1.0, 1000.0, 1.0]
EOF
venv/bin/python finding.py
