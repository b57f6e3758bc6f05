"""A model that the tests of this folder share."""

import pytest

from tests.generation.models import expressive


@pytest.fixture(scope="session")
def model():
    return expressive()
