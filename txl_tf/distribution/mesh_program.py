"""Program of JAX in which every device of a mesh takes a training step, and its state by row."""

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

    A step assigns variables as on TensorFlow. Here it is traced as a function of their values,
    whose memory the next values take. Only what the step itself sums crosses devices.
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
        stepped = jax.shard_map(
            self._stepped,
            mesh=strategy.mesh,
            in_specs=((whole, by_row), by_row, whole),
            out_specs=(whole, by_row),
            # Gradients are of a device's own rows, until the step sums them.
            check_vma=False,
        )
        self.function = jax.jit(stepped, donate_argnums=0)
        """Function of the values of variables and states, inputs, and the step before the loop."""

    def state(self) -> tuple[list[Any], list[dict[str, Any]]]:
        """Returns the values of all variables, placed on the devices, and of all states."""
        whole = self._strategy.sharding(is_by_row=False)
        for variable in self._variables:
            if variable.value.sharding != whole:
                variable.assign(self._strategy.replicated(variable.value))
        return [each.value for each in self._variables], [each.arrays for each in self._states]

    @contextlib.contextmanager
    def running(self) -> Iterator[Callable[[Mapping[str, np.ndarray], int], None]]:
        """Yields a function that takes a step; variables have their new values after the block.

        Its arguments are the rows of this process, and the steps before the block. It does not wait
        for the devices.
        """
        state = self.state()

        def take_step(inputs: Mapping[str, np.ndarray], first_step: int) -> None:
            nonlocal state
            rows = {name: self._strategy.joined(array) for name, array in inputs.items()}
            with self.products():
                state = self.function(state, rows, np.int32(first_step))

        try:
            yield take_step
        finally:
            self._set(state)

    def lower(self, inputs: Mapping[str, Any]) -> Any:
        """Lowers the step for inputs and states that may be mere shapes with a placement."""
        whole = self._strategy.sharding(is_by_row=False)
        values = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=whole) for each in self._variables
        ]
        first_step = jax.ShapeDtypeStruct((), np.int32, sharding=whole)
        with self.products():
            state = values, [each.arrays for each in self._states]
            return self.function.lower(state, inputs, first_step)

    def products(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of the program's matrix products: exact, or rounded if allowed."""
        return jax.default_matmul_precision(self._precision)

    def _set(self, state: tuple[list[Any], list[dict[str, Any]]]) -> None:
        for variable, value in zip(self._variables, state[0], strict=True):
            variable.assign(value)
        for each, arrays in zip(self._states, state[1], strict=True):
            each.arrays = arrays

    def _stepped(self, state: Any, inputs: dict[str, Any], first_step: Any) -> Any:
        values, arrays = state
        held = [each.arrays for each in self._states]
        pairs = list(zip(self._variables, values, strict=True))
        try:
            with keras.StatelessScope(pairs) as scope:
                for each, rows in zip(self._states, arrays, strict=True):
                    each.arrays = rows
                self._step(inputs, first_step)
                after = [scope.get_current_value(variable) for variable in self._variables]
            return after, [each.arrays for each in self._states]
        finally:
            for each, rows in zip(self._states, held, strict=True):
                each.arrays = rows
