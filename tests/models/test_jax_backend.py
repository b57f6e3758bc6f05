"""The same weights give the same numbers on JAX as on TensorFlow."""

from tests.jax_process import NEEDS_JAX, printed_by, start_on_jax
from tests.measurements import texts_on_jax
from tests.measurements.compare_backends import write
from tests.models.variants import ADAPTIVE, config_of

DROPPED = {"dropout": 0.1, "attention_dropout": 0.1}
MODELS = {
    "transformer_xl": config_of(**DROPPED),
    "shaw": config_of("shaw", pre_norm=True, residual_gate="gru", num_layers=1),
    "sinusoidal": config_of("sinusoidal", **ADAPTIVE, tie_weights=False, num_layers=1),
    "adaptive": config_of(**ADAPTIVE, **DROPPED, share_attention_biases=True, num_layers=1),
}
pytestmark = NEEDS_JAX


def printed_on_jax(module, *arguments, **environment):
    return printed_by(start_on_jax(f"tests.{module}", *arguments, **environment))


def test_outputs_gradients_training_and_dropout_match_tensorflow(tmp_path):
    path = str(tmp_path / "results.npz")
    write(path, MODELS, ["float32"])
    report = printed_on_jax("measurements.compare_backends", "compare", path)
    assert report["masks_identical"]
    for name in MODELS:
        assert max(report[f"{name}/float32"].values()) <= 1e-4, (name, report)
        assert report[f"{name}/float32"]["losses"] <= 1e-5


def test_a_run_opens_scores_writes_trains_and_is_saved_without_tensorflow(tmp_path):
    texts_on_jax.write(tmp_path)
    programs = tmp_path / "programs"
    report = printed_on_jax(
        "measurements.texts_on_jax", "compare", tmp_path, JAX_DUMP_IR_TO=str(programs)
    )
    assert report.pop("same texts")
    assert max(report[name] for name in ("score", "features", "dynamic", "attention")) <= 1e-5
    assert max(report.values()) <= 1e-4
    # Steps of `fit` are Keras' own programs. No other rounds float32 for a product on a TPU.
    lines = [
        line
        for path in programs.glob("*.mlir")
        for line in path.read_text().splitlines()
        if "stablehlo.dot_general" in line and "_step_" not in path.name
    ]
    assert len(lines) > 100
    assert [line for line in lines if "HIGHEST, HIGHEST" not in line] == []


def test_compiled_evaluation_and_generation_equal_the_model():
    report = printed_on_jax("measurements.measure_inference_on_jax", "--check")
    assert report["largest_difference"] <= 1e-5


def test_the_attention_kernel_trains_and_reads_as_plain_layers():
    for name, differences in printed_on_jax("tpu_kernels.kernel_on_jax").items():
        assert max(differences.values()) <= 5e-6, (name, differences)


def test_keras_divides_memory_by_row_as_it_does_batches():
    report = printed_on_jax("models.divided_memory", num_devices=4)
    assert set(report["rows"]) == {2}
