"""Whatever becomes of writers and their folder, one run comes to its end, unharmed."""

import pytest

from tests.pipelines.writer_interleavings import Interleavings
from tests.slow_case import slow_case


@pytest.mark.parametrize(
    ("scheme", "count"), [("", 8), *(slow_case(place, 60) for place in ("", "ram://"))]
)
def test_no_order_of_events_harms_a_run(scheme, count, tmp_path):
    interleavings = Interleavings(f"{scheme}{tmp_path}/{count}", seed=count)
    interleavings.run(count)
    assert interleavings.num_tried == count
    # Most of the time somebody is turned away; otherwise nothing would have been tried.
    assert interleavings.exit_codes[73] >= count // 2
    assert interleavings.exit_codes[0] >= count
