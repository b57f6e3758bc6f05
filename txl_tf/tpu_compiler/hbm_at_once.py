"""What is in a device's memory at the same time while a run trains and evaluates."""

from typing import Any

from txl_tf.tpu_compiler.compiled_program import CompiledProgram


def hbm_at_once(
    training: CompiledProgram, evaluation: CompiledProgram | None, shared_bytes: int
) -> dict[str, Any]:
    """Adds up the memory of a run's two programs.

    Weights, optimizer state and the memory of the rows stay in place during an
    evaluation, which reads the same weights, and the program that does not
    run stays loaded.

    Args:
        training: `CompiledProgram` of the training loop.
        evaluation: optional `CompiledProgram` of the evaluation.
        shared_bytes: int. Bytes of the evaluation's arguments that are the
            trainer's variables.

    Returns:
        Dict of the bytes while training and while evaluating, the limit, and
        whether both fit.
    """
    other_code = 0 if evaluation is None else evaluation.code_bytes
    while_training = training.needed_bytes + other_code
    while_evaluating = 0
    if evaluation is not None:
        kept = training.argument_bytes + training.code_bytes
        while_evaluating = kept + max(evaluation.needed_bytes - shared_bytes, 0)
    fits = training.fits and (evaluation is None or evaluation.fits)
    return {
        "while_training_bytes": while_training,
        "while_evaluating_bytes": while_evaluating,
        "limit_bytes": training.limit_bytes,
        "fits": fits and max(while_training, while_evaluating) <= training.limit_bytes,
    }
