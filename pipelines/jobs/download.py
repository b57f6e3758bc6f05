"""Brings published weights in: `txl download`.

    txl download official/wt103 --out official/wt103

Fetches the TensorFlow weights and vocabulary of Dai et al. (2019), and converts
them with their tokenizer. A download that was interrupted resumes.
"""

import argparse
import os

from txl_tf.data.sources.downloads import PublishedFile, download
from txl_tf.storage.staging import require_absent

from ..shell.arguments import add_override_argument
from ..shell.byte_progress import download_progress
from .convert import checked_settings, convert_weights

# Folder and step, as the official script has them. No sizes or checksums are published: the
# server's sizes are checked, and TensorFlow checks the tensors.
_MODELS = {
    "official/enwik8": ("tf_enwiki8", 0),
    "official/text8": ("tf_text8", 0),
    "official/wt103": ("tf_wt103", 0),
    "official/lm1b": ("tf_lm1b", 1_191_000),
}
_URL = "http://curtis.ml.cmu.edu/datasets/pretrained_xl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument("model", choices=[*_MODELS], metavar="MODEL", help=", ".join(_MODELS))
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the model to make")
    parser.add_argument(
        "--download-folder",
        metavar="DIR",
        default="downloads",
        help="where the files are kept (default: downloads)",
    )
    parser.add_argument(
        "--url", default=_URL, help=f"address of a copy of the files (default: {_URL})"
    )
    add_override_argument(
        parser,
        "model.FIELD=VALUE",
        "what the tensors do not tell, such as model.memory_length; may be repeated",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before anything is fetched."""
    require_absent(arguments.out)
    checked_settings(arguments.overrides)


def run(arguments: argparse.Namespace) -> None:
    """Downloads the files and converts them."""
    name, step = _MODELS[arguments.model]
    folder = os.path.join(arguments.download_folder, name)
    for path in (
        "data/cache.pkl",
        f"model/model.ckpt-{step}.index",
        f"model/model.ckpt-{step}.data-00000-of-00001",
    ):
        file = PublishedFile(name=path, url=f"{arguments.url}/{name}/{path}")
        with download_progress(path) as progress:
            download(file, folder, progress=progress)
    convert_weights(
        "official_tensorflow",
        os.path.join(folder, f"model/model.ckpt-{step}"),
        checked_settings(arguments.overrides),
        arguments.out,
        vocabulary=os.path.join(folder, "data/cache.pkl"),
    )
