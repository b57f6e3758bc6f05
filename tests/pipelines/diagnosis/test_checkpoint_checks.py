"""Whether checkpoints fit the notice of a spot VM and the local disk."""

import pytest

from pipelines.diagnosis.checkpoint_checks import check_checkpoints
from txl_tf.training.checkpoint_cost import CheckpointCost


@pytest.mark.parametrize(
    ("num_bytes", "free_bytes", "statuses"),
    [
        (10**9, 2 * 10**9, ["ok", "ok"]),
        (10**10, 2 * 10**10, ["warning", "ok"]),
        (10**10, 10**9, ["warning", "warning"]),
    ],
)
def test_time_and_room_are_checked(num_bytes, free_bytes, statuses):
    cost = CheckpointCost(num_bytes, num_bytes / 1e8)
    findings = list(check_checkpoints(cost, free_bytes))
    assert [finding.status for finding in findings] == statuses
    for finding in findings:
        assert finding.status == "ok" or finding.remedy
