"""What is said of a TPU that is not found: who was asked for what, and what to do."""

import urllib.error
from unittest import mock

import pytest
import tensorflow as tf

from txl_tf.distribution.strategy import METADATA_SERVER, create_strategy
from txl_tf.errors import InputMissingError


class HttpError(Exception):
    """As the client of the Cloud TPU API has it: of no class that TensorFlow knows."""


def raised(tpu, error):
    resolver = mock.patch.object(
        tf.distribute.cluster_resolver, "TPUClusterResolver", side_effect=error
    )
    with resolver, pytest.raises(InputMissingError) as found:
        create_strategy(tpu=tpu)
    assert found.value.exit_code == 66
    assert len(str(found.value).splitlines()) == 3
    assert found.value.where == f"--tpu {tpu}"
    return found.value


@pytest.mark.parametrize(
    ("error", "asked", "remedy"),
    [
        (urllib.error.URLError("Name or service not known"), METADATA_SERVER, "VM of Google Cloud"),
        (ImportError("googleapiclient and oauth2client"), "Cloud TPU API", "pip install google"),
        (HttpError("404 not found"), "Cloud TPU API was asked", "tpu-vm describe my-tpu"),
        (ValueError("Invalid TPU"), "Cloud TPU API was asked", "tpu-vm describe my-tpu"),
        (TimeoutError("no answer in 60 seconds"), "were asked", "grpc://HOST:8470"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_name_says_who_was_asked_for_what(error, asked, remedy):
    found = raised("my-tpu", error)
    assert "'my-tpu'" in found.what
    assert asked in found.what
    assert str(error.args[0]) in found.what
    assert remedy in found.remedy


def test_the_tpu_of_the_machine_needs_its_wheel():
    found = raised("local", RuntimeError("no device"))
    assert found.what == "No TPU answers: no device"
    assert "tensorflow-tpu" in found.remedy


def test_one_that_was_found_and_does_not_start_says_so():
    with (
        mock.patch("txl_tf.distribution.strategy._connected_resolver"),
        mock.patch.object(
            tf.tpu.experimental,
            "initialize_tpu_system",
            side_effect=tf.errors.UnavailableError(None, None, "in use"),
        ),
        pytest.raises(InputMissingError, match=r"found and asked to start.*in use") as found,
    ):
        create_strategy(tpu="my-tpu")
    assert found.value.exit_code == 66
