import resource
import subprocess
import sys

import pytest

from txl_tf import machine_memory
from txl_tf.errors import UsageError


def test_more_than_the_machine_has_is_refused_with_both_numbers():
    available = machine_memory.available_bytes()

    with pytest.raises(UsageError, match=r"The weights would take .* GiB; .* GiB are available"):
        machine_memory.require_memory(
            available * 3,
            what="The weights",
            where="model.hidden_dim",
            remedy="Choose a smaller one.",
        )


def test_the_limit_of_a_control_group_counts(monkeypatch, tmp_path):
    limit, usage = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000000\n")
    usage.write_text("400000\n")
    monkeypatch.setattr(machine_memory, "_CONTROL_GROUPS", ((limit, usage),))

    assert machine_memory.available_bytes() == 600_000

    limit.write_text("max\n")
    assert machine_memory.available_bytes() > 1 << 30


def test_the_limit_of_the_address_space_counts():
    program = (
        "import resource; from txl_tf import machine_memory; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30})); "
        "print(machine_memory.available_bytes())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )

    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    assert 0 < int(answer.stdout) < 1 << 30
