"""Choice of TensorFlow's CPU matrix products, made before TensorFlow is loaded."""

import os
import platform


def choose_processor_products() -> None:
    """Enables oneDNN on every x86 processor, unless the user decides.

    By default TensorFlow uses it only with instructions such as AVX-512 VNNI; elsewhere batched
    products have a third of the speed. The setting has no effect once TensorFlow is loaded.
    """
    if platform.machine().lower() in {"x86_64", "amd64"}:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
