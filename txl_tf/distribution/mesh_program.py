"""Program of JAX in which every device of a mesh takes a training step."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from txl_tf.distribution.mesh_state import MeshState
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.step_context import MESH_AXIS
from txl_tf.imports import jax


class MeshProgram:
    """Compiled training step of all devices, which changes variables and states in place.

    `step` is written as for TensorFlow: it reads and assigns Keras variables and `MeshState`s. JAX
    compiles only functions of arrays. So `step` is traced as a function that gets the values of
    variables and states, the rows and the step before the loop, and returns the new values. Devices
    exchange nothing but the sums that the step computes over the replicas.

    With `rounds_products`, matrix products may round their float32 inputs.
    """

    def __init__(
        self,
        strategy: MeshStrategy,
        step: Callable[[dict[str, Any], Any], None],
        variables: Sequence[keras.Variable],
        states: Sequence[MeshState],
        rounds_products: bool,
    ) -> None:
        self._strategy, self._step = strategy, step
        self._variables, self._states = list(variables), list(states)
        self._precision = "default" if rounds_products else "highest"
        whole, by_row = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(MESH_AXIS)
        shard_step = jax.shard_map(
            self._stepped,
            mesh=strategy.mesh,
            in_specs=((whole, by_row), by_row, whole),
            out_specs=(whole, by_row),
            # Gradients must be those of a device's own rows, because the step itself sums them.
            check_vma=False,
        )
        # The new values of variables and states take the memory of the old ones.
        self._function = jax.jit(shard_step, donate_argnums=0)

    def _state(self) -> tuple[list[Any], list[dict[str, Any]]]:
        """Returns the values of all variables and all states, and places the former on devices."""
        whole = self._strategy.sharding(is_by_row=False)
        for variable in self._variables:
            if variable.value.sharding != whole:
                variable.assign(self._strategy.replicated(variable.value))
        return [each.value for each in self._variables], [each.arrays for each in self._states]

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[Mapping[str, np.ndarray], int], None]]:
        """Yields a function that takes a step; variables have their new values after the block.

        The arguments of the function are the rows of this process, and the number of steps before
        the block. It does not wait for the devices.
        """
        state = self._state()

        def take_step(inputs: Mapping[str, np.ndarray], first_step: int) -> None:
            nonlocal state
            rows = {name: self._strategy.joined(array) for name, array in inputs.items()}
            with jax.default_matmul_precision(self._precision):
                state = self._function(state, rows, np.int32(first_step))

        try:
            yield take_step
        finally:
            for variable, value in zip(self._variables, state[0], strict=True):
                variable.assign(value)
            for each, arrays in zip(self._states, state[1], strict=True):
                each.arrays = arrays

    def lower(self, inputs: Mapping[str, Any]) -> Any:
        """Lowers the step; inputs and states may be shapes with a placement, without values."""
        whole = self._strategy.sharding(is_by_row=False)
        values = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=whole) for each in self._variables
        ]
        first_step = jax.ShapeDtypeStruct((), np.int32, sharding=whole)
        with jax.default_matmul_precision(self._precision):
            state = values, [each.arrays for each in self._states]
            return self._function.lower(state, inputs, first_step)

    def _stepped(self, state: Any, inputs: dict[str, Any], first_step: Any) -> Any:
        """Takes a step on one device; returns the state after it."""
        values, arrays = state
        arrays_before = [each.arrays for each in self._states]
        pairs = list(zip(self._variables, values, strict=True))
        try:
            with keras.StatelessScope(pairs) as scope:
                for each, rows in zip(self._states, arrays, strict=True):
                    each.arrays = rows
                self._step(inputs, first_step)
                after = [scope.get_current_value(variable) for variable in self._variables]
            return after, [each.arrays for each in self._states]
        finally:
            for each, rows in zip(self._states, arrays_before, strict=True):
                each.arrays = rows
