#!/usr/bin/env bash
# optax.apply_if_finite applies NaN after max_consecutive_errors bad steps.
#
# Version:   optax 0.2.8, JAX 0.10.2
# Behaviour: The wrapper leaves out updates that are not finite, but only max_consecutive_errors of
#            them in a row. The next one is applied, whatever is in it, so all parameters and the
#            optimizer's moments become NaN. It is no guard for an unwatched run: a fault that lasts
#            ends the model.
# Source:    apply_if_finite in optax/transforms/_conditionality.py, and its documentation.
# Seen:      parameters after NaN gradients 1, 2, 3 with max_consecutive_errors=2: 1 1 nan.
set -euo pipefail

packages="optax==0.2.8 jax==0.10.2 jaxlib==0.10.2"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import jax.numpy as jnp
import numpy as np
import optax

optimizer = optax.apply_if_finite(optax.adam(0.1), max_consecutive_errors=2)
parameter = jnp.ones(())
state = optimizer.init(parameter)
seen = []
for _ in range(3):
    updates, state = optimizer.update(jnp.full((), jnp.nan), state, parameter)
    parameter = optax.apply_updates(parameter, updates)
    seen.append(float(parameter))
print("parameter after each NaN gradient:", *seen)

updates, state = optimizer.update(jnp.ones(()), state, parameter)
after_good = float(optax.apply_updates(parameter, updates))
print("after a finite gradient:", after_good)

assert seen[:2] == [1.0, 1.0]
assert np.isnan(seen[2]) and np.isnan(after_good)
EOF
venv/bin/python finding.py
