"""TensorFlow's library of products on a processor, chosen before TensorFlow is loaded."""

import os
import platform


def choose_processor_products() -> None:
    """Lets TensorFlow use oneDNN on every x86 processor, unless the user decides.

    By itself TensorFlow does so only where it finds instructions for neural networks
    such as AVX-512 VNNI. Elsewhere its products of batches have a third of the speed.
    TensorFlow reads the setting once, so a process that loaded it before keeps what it has.
    """
    if platform.machine().lower() in {"x86_64", "amd64"}:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
