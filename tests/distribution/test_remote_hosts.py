"""A process that is connected to no other host has none to ask."""

import tensorflow as tf

from txl_tf.distribution.remote_hosts import at_once, remote_hosts, this_host
from txl_tf.distribution.strategy import create_strategy


def test_the_strategies_of_one_machine_have_no_remote_hosts():
    assert remote_hosts(create_strategy()) == []
    assert remote_hosts(create_strategy(num_cpu_replicas=2)) == []


def test_operations_at_once_and_on_this_host_are_operations():
    variable = tf.Variable(1)
    with at_once(), this_host():
        variable.assign_add(1)
        assert "CPU:0" in (tf.constant(1) + 1).device
    assert variable.numpy() == 2
