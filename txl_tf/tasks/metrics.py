"""Metrics of predictions; scikit-learn and SciPy compute most of them.

| kind | predictions | metrics |
|---|---|---|
| classification | indices of classes | `accuracy`, `f1`, `f1_macro`, `matthews` |
| regression | numbers | `pearson`, `spearman`, `mean_squared_error` |

`f1` needs two classes and is the F1 score of the second one, as in GLUE. `f1_macro` is the mean
over all classes. Fractions range from 0 to 1, correlations from -1 to 1.

A metric that is undefined is 0, so that training can continue. Correlations, including Matthews',
are undefined if all predictions or all labels are equal. The F1 score of a class is undefined if
the class neither occurs nor is predicted.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from txl_tf.config.base import shown_value
from txl_tf.config.task import TaskKind
from txl_tf.errors import did_you_mean
from txl_tf.imports import require_extra
from txl_tf.tasks.examples import Example


def compute_metrics(
    names: Sequence[str],
    kind: TaskKind,
    labels: tuple[str, ...],
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
) -> dict[str, float]:
    """Compares predictions with labels.

    Args:
        names: sequence of str. Metrics of the kind; see the table above.
        kind: str. One of `TASK_KINDS`.
        labels: tuple of str. The classes; empty for a regression.
        examples: sequence of `Example`, all of them with labels.
        predictions: sequence or array with a prediction for each example, see the table above.

    Returns:
        Dict of floats by name.

    Raises:
        UsageError: If scikit-learn or SciPy is not installed.
        ValueError: If a metric is not of the kind, or the numbers of predictions and labels differ.

    Example:
    ```python
    examples = [
        Example(name=str(number), where=f"row {number}", texts=("a text",), label=label)
        for number, label in enumerate(("bad", "good", "good"))
    ]
    names = ("accuracy", "f1")
    print(compute_metrics(names, "classification", ("bad", "good"), examples, [0, 1, 0]))
    ```
    """
    require_extra("finetune", "sklearn", "scipy", purpose="Computing the metrics of a task")
    if not len(examples) or len(examples) != len(predictions):
        raise ValueError(
            "There must be a prediction for each example, and at least one example. "
            f"Received: {len(examples)} examples, {len(predictions)} predictions"
        )
    for example in examples:
        if example.label is None:
            raise ValueError(f"Every example must have a label. Received: none in {example.where}")
    if kind == "classification":
        figures = _class_figures(labels, examples, predictions)
    else:
        figures = _number_figures(examples, predictions)
    for name in names:
        if name not in figures:
            raise ValueError(
                f"A metric of this {kind} task must be one of "
                f"{', '.join(figures)}.{did_you_mean(name, figures)} Received: {shown_value(name)}"
            )
    return {name: figures[name] for name in names}


def _class_figures(
    labels: tuple[str, ...], examples: Sequence[Example], predictions: Any
) -> dict[str, float]:
    from sklearn import metrics

    classes = np.asarray(predictions)
    right = np.array([labels.index(str(example.label)) for example in examples])
    # `zero_division` avoids a warning if a class neither occurs nor is predicted.
    each_f1 = metrics.f1_score(
        right, classes, labels=range(len(labels)), average=None, zero_division=0.0
    )
    matthews = 0.0
    if not (_is_constant(right) or _is_constant(classes)):
        matthews = metrics.matthews_corrcoef(right, classes)
    figures = {
        "accuracy": np.mean(right == classes),
        "f1_macro": each_f1.mean(),
        "matthews": matthews,
        **({"f1": each_f1[1]} if len(labels) == 2 else {}),
    }
    return {name: float(value) for name, value in figures.items()}


def _is_constant(values: np.ndarray) -> bool:
    return bool((values == values[0]).all())


def _number_figures(examples: Sequence[Example], predictions: Any) -> dict[str, float]:
    from scipy import stats

    numbers = np.asarray(predictions, np.float64)
    right = np.array([example.label for example in examples], np.float64)
    return {
        "pearson": _correlation(stats.pearsonr, right, numbers),
        "spearman": _correlation(stats.spearmanr, right, numbers),
        "mean_squared_error": float(np.mean((right - numbers) ** 2)),
    }


def _correlation(
    function: Callable[[np.ndarray, np.ndarray], Any], right: np.ndarray, numbers: np.ndarray
) -> float:
    if _is_constant(right) or _is_constant(numbers):
        return 0.0
    with warnings.catch_warnings():
        # SciPy warns if values are nearly equal.
        warnings.simplefilter("ignore")
        value = float(function(right, numbers).statistic)
    return value if np.isfinite(value) else 0.0
