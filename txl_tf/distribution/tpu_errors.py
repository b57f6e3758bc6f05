"""Errors of a TPU that is not found: what was asked of whom, and what to do."""

import urllib.error

from txl_tf.distribution.server_address import tpu_addresses
from txl_tf.errors import InputMissingError
from txl_tf.storage.files import first_line

METADATA_SERVER = "metadata.google.internal"
"""Server of each machine of Google Cloud, which knows the project and zone of the machine."""


def tpu_not_found(tpu: str, error: Exception) -> InputMissingError:
    """Returns the error of a TPU that cannot be connected to.

    Args:
        tpu: str. `local`, a name, or addresses `grpc://host:port`.
        error: what TensorFlow raised.
    """
    where = f"--tpu {tpu}"
    if tpu == "local" or tpu_addresses(tpu):
        return InputMissingError(
            f"No TPU answers: {first_line(error)}",
            where=where,
            remedy="On a TPU VM use `--tpu local` with tensorflow-tpu installed.",
        )
    if isinstance(error, ImportError):
        asked = "the Cloud TPU API was to be asked for its address, and its client is missing"
        remedy = "pip install google-api-python-client oauth2client, or give grpc://HOST:8470."
    elif _is_of_metadata(error):
        asked = f"{METADATA_SERVER} was asked for its project and zone"
        remedy = "Names need a VM of Google Cloud. On a TPU VM: --tpu local; else grpc://HOST:8470."
    elif isinstance(error, TimeoutError):
        asked = f"{METADATA_SERVER} and the Cloud TPU API were asked for its address"
        remedy = "Check the network, or give grpc://HOST:8470."
    else:
        asked = "the Cloud TPU API was asked for its address"
        remedy = f"Check name, zone and rights: gcloud compute tpus tpu-vm describe {tpu[:80]}"
    return InputMissingError(
        f"No TPU answers to the name {tpu[:80]!r}: {asked}: {first_line(error)}",
        where=where,
        remedy=remedy,
    )


def tpu_not_started(tpu: str, error: Exception) -> InputMissingError:
    """Returns the error of a TPU that was found and does not start; as `tpu_not_found`."""
    return InputMissingError(
        f"The TPU was found and asked to start, and did not: {first_line(error)}",
        where=f"--tpu {tpu}",
        remedy="Check that no other process uses it; `txl doctor --tpu` checks the installation.",
    )


def _is_of_metadata(error: Exception) -> bool:
    """Whether the server of metadata is what failed, which is asked first, by `urllib`."""
    return isinstance(error, urllib.error.URLError) or METADATA_SERVER in str(error)
