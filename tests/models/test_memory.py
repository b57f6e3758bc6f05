import keras
import numpy as np
from keras import ops

from txl_tf.models.memory import Memory


def test_forget_empties_only_the_rows_named():
    states = tuple(ops.ones((3, 4, 6)) for _ in range(2))
    memory = Memory(states, ops.convert_to_tensor([4, 2, 3], "int32"))
    forgotten = memory.forget(np.array([True, False, True]))
    assert ops.convert_to_numpy(forgotten.valid_length).tolist() == [0, 2, 0]
    assert keras.backend.standardize_dtype(forgotten.valid_length.dtype) == "int32"
    assert all(new is old for new, old in zip(forgotten.states, states, strict=True))
    # The memory that was handed in is as it was.
    assert ops.convert_to_numpy(memory.valid_length).tolist() == [4, 2, 3]


def test_memory_is_a_structure_that_keras_can_map_over():
    memory = Memory((ops.zeros((2, 4, 6)),) * 3, ops.zeros((2,), "int32"))
    assert len(keras.tree.flatten(memory)) == 4
    mapped = keras.tree.map_structure(lambda tensor: tensor + 1, memory)
    assert isinstance(mapped, Memory)
    assert ops.convert_to_numpy(mapped.valid_length).tolist() == [1, 1]
