#!/usr/bin/env bash
# A SavedModel exported after set_seed draws the same numbers in every process.
#
# Version:   TensorFlow 2.21.0
# Behaviour: tf.random.set_seed (or keras.utils.set_random_seed) in the program that exports is
#            written into each random operation of the graph. Every process that loads the model
#            begins the same sequence: all servers, and a server after each start, write the same
#            samples. tf.random.set_seed after loading changes nothing.
# Source:    get_seed in tensorflow/python/framework/random_seed.py, called when a function is
#            traced.
# Seen:      with a seed, three processes draw the same five numbers, one of them after set_seed(7);
#            without, three times others.
set -euo pipefail

packages="tensorflow==2.21.0 numpy==2.4.6"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install -q --disable-pip-version-check $packages
cat > finding.py <<'EOF'
import subprocess
import sys

import tensorflow as tf

LOAD = """
import sys
import tensorflow as tf
sampler = tf.saved_model.load(sys.argv[1])
if len(sys.argv) > 2:
    tf.random.set_seed(int(sys.argv[2]))
print(sampler.draw().numpy().tolist())
"""


class Sampler(tf.Module):
    @tf.function(input_signature=[])
    def draw(self):
        return tf.random.categorical(tf.zeros((1, 1000)), 5)[0]


def drawn(folder, *seed):
    words = [sys.executable, "-c", LOAD, folder, *seed]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


tf.saved_model.save(Sampler(), "unseeded")
tf.random.set_seed(1)
tf.saved_model.save(Sampler(), "seeded")
num_different = {}
for folder in ("seeded", "unseeded"):
    draws = [drawn(folder), drawn(folder), drawn(folder, "7")]
    print(f"{folder}:", *draws)
    num_different[folder] = len(set(draws))

assert num_different == {"seeded": 1, "unseeded": 3}
EOF
TF_CPP_MIN_LOG_LEVEL=2 venv/bin/python finding.py
