"""Results that other implementations computed, and the same computations by this package."""

import json
import tempfile
from pathlib import Path

import numpy as np
from keras import ops

from txl_tf.convert import load_hugging_face, load_official_tensorflow

FOLDER = Path(__file__).resolve().parent.parent / "golden"
TENSORFLOW = ("tf1_enwik8_like", "tf1_wt103_like")
HUGGING_FACE = ("hf_char", "hf_adaptive_div4")
NUM_SEGMENTS = 3


def save(folder, tensors, config=None):
    """Writes a state dict, and Hugging Face's configuration beside it."""
    path = folder / "model.npz"
    np.savez(path, **tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return path


class Golden:
    """Model of another implementation, with its inputs and results, from one file or folder."""

    def __init__(self, name):
        self.name = name
        self.is_tensorflow = name in TENSORFLOW
        path = FOLDER / name / "expected.npz" if self.is_tensorflow else FOLDER / f"{name}.npz"
        with np.load(path, allow_pickle=False) as file:
            self.arrays = {key: file[key] for key in file.files}
        self.config = json.loads(str(self.arrays["config"]))

    @property
    def settings(self):
        """Settings that the shapes do not tell, by the names of `ModelConfig`."""
        clamp_length = self.config["clamp_len"]
        return {
            "segment_length": self.arrays["seg0/inputs"].shape[1],
            "memory_length": self.config["mem_len"],
            "clamp_length": clamp_length if clamp_length > 0 else None,
            "same_length": self.config["same_length"],
        }

    @property
    def state_dict(self):
        prefix = "state_dict/"
        return {
            key.removeprefix(prefix): array
            for key, array in self.arrays.items()
            if key.startswith(prefix)
        }

    def load(self):
        if self.is_tensorflow:
            return load_official_tensorflow(FOLDER / self.name / "model.ckpt-0", **self.settings)
        with tempfile.TemporaryDirectory() as folder:
            return load_hugging_face(save(Path(folder), self.state_dict, self.config))

    def zeros(self, model):
        """Returns a memory of zeros, which queries attend to."""
        batch_size = self.arrays["seg0/inputs"].shape[0]
        return model.initial_memory(batch_size, self.config["mem_len"], zeros_count=True)

    def differences(self, model):
        """Returns the largest difference of every kind of result, over all segments."""
        worst = {}
        memory = self.zeros(model)
        for segment in range(NUM_SEGMENTS):
            computed, memory = self._compute(model, segment, memory)
            for name, tensor in computed.items():
                expected = self.arrays.get(f"seg{segment}/{name}")
                if expected is not None:
                    assert tuple(tensor.shape) == expected.shape, name
                    kind = name.split("/")[0]
                    difference = float(np.abs(ops.convert_to_numpy(tensor) - expected).max())
                    worst[kind] = max(worst.get(kind, 0.0), difference)
        return worst

    def _compute(self, model, segment, memory):
        inputs = self.arrays[f"seg{segment}/inputs"]
        hidden_states, _ = model.hidden_states(inputs, memory)
        log_probs, _ = model.log_probs(inputs, memory)
        nll, after = model.score(inputs, self.arrays[f"seg{segment}/targets"], memory)
        computed = {
            "nll": nll,
            "last_hidden": hidden_states[-1],
            "log_probs": log_probs,
            "attention_last_layer": last_attention(model, hidden_states[-2], memory),
        }
        computed |= {f"memory_out/{layer}": state for layer, state in enumerate(after.states)}
        return computed, after


def last_attention(model, inputs, memory):
    """Returns the attention probabilities of the last block."""
    arguments = model.attention_inputs(model.config.num_layers - 1, inputs, memory)
    return model.blocks[-1].attention(**arguments, return_probabilities=True)
