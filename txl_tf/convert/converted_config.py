"""Configuration of a converted model, merged from several sources.

Sizes come from the shapes of the tensors. Other fields are settings of the caller, stored beside
the tensors, or assumed, see `merge_config`.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from txl_tf.config.limits import MAX_TOKEN_IDS, MAX_WIDTH
from txl_tf.config.model import ModelConfig
from txl_tf.convert.foreign_tensors import differences_error
from txl_tf.errors import MismatchError, errors_as

# Settings of published models, which are recognised by layers, hidden width and first cutoff.
_PUBLISHED_FIELDS = (
    "segment_length",
    "memory_length",
    "clamp_length",
    "dropout",
    "attention_dropout",
    "same_length",
)
_PUBLISHED: dict[tuple[int, int, int | None], tuple[Any, ...]] = {
    (12, 512, None): (80, 2100, 820, 0.1, 0.0, True),
    (24, 1024, None): (128, 3800, 1000, 0.15, 0.15, True),
    (16, 410, 20000): (64, 640, 400, 0.1, 0.0, True),
    (16, 512, 19997): (64, 640, 400, 0.1, 0.0, True),
    (18, 1024, 20000): (128, 1600, 1000, 0.2, 0.2, True),
    (18, 1024, 19997): (128, 1600, 1000, 0.2, 0.2, True),
    (18, 1024, 60000): (32, 128, None, 0.1, 0.0, True),
    (24, 1280, 60000): (32, 128, None, 0.05, 0.05, True),
}
# Stand-ins for sizes, with which settings are checked before a checkpoint is read.
_ANY_SIZES = {
    "vocabulary_size": MAX_TOKEN_IDS,
    "num_layers": 1,
    "hidden_dim": MAX_WIDTH,
    "num_heads": 1,
    "head_dim": 1,
    "intermediate_dim": 1,
    "segment_length": 1,
    "memory_length": 0,
}


def required_shape(
    shapes: dict[str, tuple[int, ...]], name: str, num_axes: int, where: str
) -> tuple[int, ...]:
    """Returns the shape of a tensor that every checkpoint of this kind has.

    Raises MismatchError if the tensor is missing, is empty or has another number of axes.
    """
    if name not in shapes:
        raise differences_error({"missing": [name]}, where)
    if len(shapes[name]) != num_axes or 0 in shapes[name]:
        raise differences_error(
            {"misshapen": [f"{name} has shape {shapes[name]}, not {num_axes} axes"]}, where
        )
    return shapes[name]


def count_numbered(shapes: Mapping[str, Any], pattern: str) -> int:
    """Counts layers or clusters by the numbers in tensor names, which begin at 0."""
    matches = (re.match(pattern, name) for name in shapes)
    numbers = {int(match.group(1)) for match in matches if match}
    highest = max(numbers, default=-1)
    # A number far above the others belongs to an unexpected tensor, which an error should name.
    return highest + 1 if highest < 2 * len(numbers) else len(numbers)


def vocabulary_sizes(
    tables: list[tuple[int, ...]], cutoffs: tuple[int, ...] | None, where: str
) -> dict[str, Any]:
    """Infers the fields of the vocabulary from the shapes of the tables of the embedding.

    Several tables, one for each cluster, also tell the cutoffs and replace `cutoffs`. Raises
    MismatchError if their widths do not fall by one factor.
    """
    rows, widths = zip(*tables, strict=True)
    if len(tables) > 1:
        cutoffs = tuple(itertools.accumulate(rows[:-1]))
    factors = range(1, widths[0] + 1) if len(widths) > 1 else (1,)
    for factor in factors:
        if all(widths[0] // factor**i == width for i, width in enumerate(widths)):
            return {
                "vocabulary_size": sum(rows),
                "cutoffs": cutoffs or (),
                "embedding_dim": widths[0],
                "division_factor": factor,
            }
    raise MismatchError(
        f"Each cluster must be narrower by the same factor; the widths are {list(widths)}.",
        where=where,
        remedy="Such a checkpoint cannot be loaded.",
    )


def check_settings(settings: dict[str, Any]) -> None:
    """Checks settings as far as possible without a checkpoint.

    Raises ValueError if a setting is no field of `ModelConfig`, is not valid, or does not exist in
    other implementations.
    """
    config = ModelConfig.from_dict({**_ANY_SIZES, **settings})
    if config.position_encoding != "transformer_xl":
        config.refuse(
            '`position_encoding` must be "transformer_xl" for a model of another implementation.',
            "position_encoding",
        )


def merge_config(
    sizes: dict[str, Any],
    defaults: dict[str, Any],
    settings: dict[str, Any],
    stored: dict[str, Any],
    where: str,
    origins: dict[str, str] | None = None,
) -> ModelConfig:
    """Merges a configuration and fills `origins` with the origin of every field, in words.

    The sources are, in descending precedence: `sizes` of the tensors, `settings` of the caller,
    fields `stored` beside the tensors, `defaults` of the implementation, and the published model of
    these sizes. Raises MismatchError if `settings` or `stored` contradict the sizes, or if the
    fields describe no model. Raises ValueError if a setting is not valid, or if no source has the
    memory length.
    """
    differing = [
        f"{name} is {sizes[name]!r} in the tensors, not {value!r}"
        for name, value in {**stored, **settings}.items()
        if name in sizes and sizes[name] != (tuple(value) if isinstance(value, list) else value)
    ]
    if differing:
        raise MismatchError(
            f"Settings contradict the checkpoint: {'; '.join(differing)}.",
            where=where,
            remedy="Leave these settings out, also of a config.json: the tensors decide them.",
        )
    with errors_as(
        MismatchError,
        ValueError,
        "The checkpoint and the configuration beside it do not describe a model",
        where,
        "Check that the file is whole, or give the tensors in a folder of their own.",
    ):
        ModelConfig.from_dict({"segment_length": 1, "memory_length": 0, **stored, **sizes})
    cutoffs = sizes.get("cutoffs") or (None,)
    field_values = _PUBLISHED.get((sizes["num_layers"], sizes["hidden_dim"], cutoffs[0]), ())
    sources: dict[str, Mapping[str, Any]] = {
        "assumed: the default": {"segment_length": 128},
        "assumed: as in the published model of these sizes": dict(
            zip(_PUBLISHED_FIELDS, field_values, strict=False)
        ),
        "assumed: as in the code that wrote it": defaults,
        "found in config.json": stored,
        "given": settings,
        "found in the tensors": sizes,
    }
    values: dict[str, Any] = {}
    origins = {} if origins is None else origins
    origins |= {field.name: "assumed: the default" for field in dataclasses.fields(ModelConfig)}
    for origin, source in sources.items():
        values |= source
        origins |= dict.fromkeys(source, origin)
    if "memory_length" not in values:
        raise ValueError(
            "`memory_length` must be given: the checkpoint does not store it, nor has it the sizes "
            f"of a published model. Received: {settings or 'no settings'}"
        )
    return ModelConfig.from_dict(values)
