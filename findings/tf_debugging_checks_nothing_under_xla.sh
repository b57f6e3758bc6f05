#!/usr/bin/env bash
# tf.debugging checks nothing in a function that XLA compiles.
#
# Version:   TensorFlow 2.21.0
# Behaviour: With jit_compile=True, assert_less and the like compile to nothing, and check_numerics
#            returns its NaN. Without it both raise InvalidArgumentError. For Assert a warning in
#            the log says so, for check_numerics nothing does. So checks of labels, lengths or NaN
#            vanish where a step is compiled for speed.
# Source:    AssertOp in tensorflow/compiler/tf2xla/kernels/assert_op.cc; CheckNumerics is an
#            identity in XLA.
# Seen:      plain: InvalidArgumentError for both; compiled: 14 and nan.
set -euo pipefail

packages="tensorflow==2.21.0 numpy==2.4.6"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import tensorflow as tf


def doubled(label):
    tf.debugging.assert_less(label, 5)
    return 2 * label


def checked(loss):
    return tf.debugging.check_numerics(loss, "the loss is not finite")


def result(function, argument, jit_compile):
    try:
        return float(tf.function(function, jit_compile=jit_compile)(argument))
    except tf.errors.InvalidArgumentError as error:
        return type(error).__name__


seen = {}
for function, argument in ((doubled, tf.constant(7)), (checked, tf.constant(float("nan")))):
    for jit_compile in (False, True):
        found = result(function, argument, jit_compile)
        print(f"{function.__name__}, jit_compile={jit_compile}: {found}")
        seen[function.__name__, jit_compile] = found

assert result(doubled, tf.constant(3), False) == result(doubled, tf.constant(3), True) == 6
assert seen["doubled", False] == seen["checked", False] == "InvalidArgumentError"
assert seen["doubled", True] == 14
assert str(seen["checked", True]) == "nan"
EOF
TF_CPP_MIN_LOG_LEVEL=1 venv/bin/python finding.py
