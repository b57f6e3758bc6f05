"""Work of this project in a process of its own: `python -m pipelines.benchmarking.own_work`."""

from typing import Any

from txl_tf.config.experiment import ExperimentConfig

from .turn_server import Turn, serve

RATE_TYPES = ("float32", "bfloat16")
"""Precisions in which the rate of large products is measured."""


def create(request: dict[str, Any]) -> Turn:
    """Creates what a request asks for.

    Args:
        request: dict with the suite as `work`, a `folder` to write into,
            the settings as `experiment`, and what a suite has besides.
    """
    work = request["work"]
    if work == "rates":
        return _measure_rates
    if work in ("prepare", "read"):
        from . import data_work

        return {"prepare": data_work.prepare, "read": data_work.read}[work](request)
    from . import model_work

    experiment = ExperimentConfig.from_dict(request["experiment"])
    if work == "generate":
        return model_work.generate(experiment, request["num_rows"])
    if work == "evaluate":
        return model_work.evaluate(experiment)
    turn = model_work.TrainingTurns(experiment, request["folder"])
    if work == "first_step":
        turn(1)
    return turn


def _measure_rates(count: int) -> dict[str, float]:
    from txl_tf.training.product_rate import product_rate

    return {dtype: product_rate(dtype) for dtype in RATE_TYPES}


if __name__ == "__main__":
    serve(create)
