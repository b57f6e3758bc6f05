"""Small models whose texts depend on every earlier token, and texts without memory."""

import numpy as np

from tests.layer_checks import randomize_weights
from tests.small_models import SEGMENT_LENGTH, VOCABULARY_SIZE, toy_experiment, weight_of
from txl_tf.config.model import RELATIVE_ENCODINGS
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

SIZES = {"hidden_dim": 16, "head_dim": 8, "intermediate_dim": 32, "layer_norm_epsilon": 1e-6}
# Memory for every token of a test; segments of 5.
CONFIG = toy_experiment(model={**SIZES, "memory_length": 40}).model


def prompt(length, num_rows=3):
    return np.random.default_rng(length).integers(0, VOCABULARY_SIZE, size=(num_rows, length))


RAGGED = [prompt(3, 1)[0], prompt(17, 1)[0], prompt(9, 1)[0]]


def expressive(**changes):
    """A model whose next token depends on the text, and is not always the same one."""
    generator = np.random.default_rng(2)
    model = TransformerXL(CONFIG.replace(**changes))
    for variable in sorted(model.weights, key=lambda variable: variable.path):
        if len(variable.shape) > 1:
            variable.assign(generator.normal(size=variable.shape))
    memory = model.initial_memory(8, 0) if model.config.recurrence else model.initial_memory(8)
    log_probs, _ = model.log_probs(prompt(30, num_rows=8), memory)
    weight_of(model, "softmax/bias").assign(-np.mean(log_probs, axis=(0, 1)))
    return model


def recurrent(config_class):
    sizes = {"num_layers": 1, "hidden_dim": 6, "segment_length": SEGMENT_LENGTH, "dropout": 0.0}
    model = create_model(config_class(vocabulary_size=VOCABULARY_SIZE, **sizes))
    randomize_weights(model)
    return model


def logits_after(model, texts):
    """Logits after each text, of one pass over all texts without memory."""
    lengths = [len(text) for text in texts]
    padded = np.array([[*text, *[0] * (max(lengths) - len(text))] for text in texts])
    hidden, _ = model(padded, model.initial_memory(len(texts), 0))
    # No token sees the padding, which comes after it.
    return np.array(model.logits_of(hidden))[np.arange(len(texts)), np.array(lengths) - 1]


def greedy_by_reading_again(model, rows, num_tokens, settings):
    """The most probable token after the whole text of each row so far, without any memory.

    Repetition as in CTRL, on tokens read and written; the others as OpenAI, on those written.
    """
    outputs = [[] for _ in rows]
    bias = [settings.get("logit_bias", {}).get(token, 0) for token in range(VOCABULARY_SIZE)]
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    repetition, frequency, presence = (settings.get(name, name[0] == "r") for name in names)
    for _ in range(num_tokens):
        texts = [[*row, *output] for row, output in zip(rows, outputs, strict=True)]
        for text, output, logits in zip(texts, outputs, logits_after(model, texts), strict=True):
            for token in set(text):
                logits[token] *= repetition if logits[token] < 0 else 1 / repetition
            for token in set(output):
                logits[token] -= output.count(token) * frequency + presence
            output.append(int(np.argmax(logits + bias)))
    return outputs


def greedy_by_the_model(model, row, num_tokens, memory=None):
    """The same by segments of the prompt but its last token, and then token by token."""
    memory, length = memory or model.initial_memory(1), model.config.segment_length
    for start in range(0, len(row) - 1, length):
        segment, options = row[start : min(start + length, len(row) - 1)], {}
        if getattr(model.config, "position_encoding", "shaw") not in RELATIVE_ENCODINGS:
            options["lengths"] = np.int32(len(segment))
            segment = np.pad(segment, (0, length - len(segment)))
        _, memory = model(segment[None], memory, **options)
    token, output = row[None, -1:], []
    for _ in range(num_tokens):
        log_probs, memory = model.log_probs(token, memory)
        token = np.argmax(log_probs, axis=-1)
        output.append(int(token[0, 0]))
    return output
