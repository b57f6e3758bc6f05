"""Compares work on a run on JAX without TensorFlow with the same work on TensorFlow.

    python -m tests.measurements.texts_on_jax write FOLDER
    KERAS_BACKEND=jax python -m tests.measurements.texts_on_jax compare FOLDER

The work is to load a run, score, write texts, train and save. `write` makes a run with random
weights and writes its results. `compare` prints the largest differences as JSON, and if the texts
are equal. TensorFlow may be missing; if it is installed, `compare` hides it.
"""

import json
import os
import sys
from pathlib import Path

if os.environ.get("KERAS_BACKEND") == "jax":
    sys.modules["tensorflow"] = None

import keras
import numpy as np

import txl_tf
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.evaluation.attention_profile import AttentionProfiler, profiled_config
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.scores import score_text
from txl_tf.model_folder import RunDescription, build_model, settings_file
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore

TEXT = "Row r of a batch continues row r of the batch before it, and so on to the end. " * 9
NUM_ROWS, NUM_STEPS = 2, 20
EXPERIMENT = txl_tf.ExperimentConfig(
    model=txl_tf.ModelConfig(
        vocabulary_size=256,
        num_layers=2,
        hidden_dim=32,
        num_heads=2,
        head_dim=16,
        intermediate_dim=64,
        segment_length=len(TEXT) // (NUM_ROWS * NUM_STEPS),
        memory_length=24,
        dropout=0.0,
    ),
    training=txl_tf.TrainingConfig(global_batch_size=2, num_steps=7),
    optimizer=txl_tf.OptimizerConfig(warmup_steps=0),
)


def write_run(folder):
    """Writes a run with one checkpoint."""
    kind, sha256 = ByteTokenizer.kind, ByteTokenizer().fingerprint
    data = {"fingerprint": "none", "corpus": "text", "vocabulary_size": 256}
    data |= {"tokenizer": kind, "tokenizer_sha256": sha256}
    run = RunDescription(experiment=EXPERIMENT, data=data)
    generator, weights = np.random.default_rng(0), {}
    for weight in txl_tf.TransformerXL(EXPERIMENT.model).weights:
        numbers = generator.normal(float("gamma" in weight.path), 0.3, weight.shape)
        weights[f"model/{weight.path}"] = numbers.astype("float32")
    CheckpointStore(folder / "checkpoints", run.identity()).save(7, weights)
    (folder / "run.json").write_bytes(settings_file(run))


def analyses_of(model):
    """Returns the nats of dynamic evaluation, and attention by distance."""
    settings = {"batch_size": 1, "dynamic_learning_rate": 0.03, "dynamic_decay": 0.1}
    evaluator = Evaluator(model, txl_tf.EvaluationConfig(**settings))
    nats = score_text(evaluator, ByteTokenizer(), TEXT[:150]).nats[1:]
    config = profiled_config(model.config, 8, 24)
    profiled = build_model(config, {each.path: each.numpy() for each in model.weights})
    profiler = AttentionProfiler(profiled, batch_size=1)
    token_ids = ByteTokenizer().encode(TEXT).astype("int32")
    for start in range(0, 80, 8):
        profiler.add(token_ids[None, start : start + 8], np.full((1, 8), start >= 24))
    attention = profiler.result().to_arrays()
    return {"dynamic": nats, "rows": profiler.last_rows(0, 0), **attention}


def results_of(run, new_folder):
    """Returns arrays that are compared with a tolerance, and texts that must be equal."""
    lm = txl_tf.load(run)
    lm.compile(keras.optimizers.Adam(1e-3, global_clipnorm=0.25), sampler="greedy")
    session = lm.session(seed=5, temperature=0.8)
    token_ids, _ = txl_tf.generate(txl_tf.load_model(run), [[82, 111]], sampler="greedy")
    texts = [
        token_ids.tolist(),
        *lm.generate(["Row ", "the batch"], max_tokens=30),
        lm.generate("Row ", max_tokens=8, sampler="beam"),
        session.write("of a", max_tokens=8) + session.write(max_tokens=8),
    ]
    arrays = {"score": lm.score(TEXT[:150]).nats[1:], "features": lm.embed("Row r of")}
    arrays |= analyses_of(lm.model)
    means = [0.0]
    append_mean = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: means.append(float(logs["loss"]))
    )
    lm.fit(TEXT, batch_size=NUM_ROWS, verbose=0, callbacks=[append_mean], validation_data=TEXT[:99])
    assert lm.step == 7 + NUM_STEPS
    arrays["losses"] = np.diff(np.arange(NUM_STEPS + 1) * means)  # Keras has running means
    arrays["score after training"] = lm.score(TEXT[:150]).nats[1:]
    lm.save_to_preset(new_folder)
    assert txl_tf.load(new_folder).score(TEXT[:150]).total_nats == lm.score(TEXT[:150]).total_nats
    return arrays, texts


def write(folder):
    """Writes a run and the results of this backend."""
    write_run(folder / "run")
    arrays, texts = results_of(folder / "run", folder / "saved")
    np.savez(folder / "results.npz", texts=json.dumps(texts), **arrays)


def compare(folder):
    """Returns the largest differences from the results in a folder, and if the texts are equal."""
    arrays, texts = results_of(folder / "run", folder / "saved on JAX")
    expected = np.load(folder / "results.npz", allow_pickle=False)
    report = {name: float(np.abs(each - expected[name]).max()) for name, each in arrays.items()}
    return {**report, "same texts": texts == json.loads(str(expected["texts"]))}


if __name__ == "__main__":
    report = {"write": write, "compare": compare}[sys.argv[1]](Path(sys.argv[2]))
    if report is not None:
        print(json.dumps(report))
