"""Settings of a small task, and examples for it."""

from txl_tf.config.task import TaskConfig
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.tasks.examples import Example

BYTES = ByteTokenizer()


def task_of(kind, **settings):
    labels = ("no", "yes") if kind == "classification" else None
    return TaskConfig(**{"kind": kind, "labels": labels, "metric": "accuracy", **settings})


def example(*texts, number=0, label=None):
    return Example(name=str(number), where=f"file, line {number + 1}", texts=texts, label=label)
