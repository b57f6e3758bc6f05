"""Model sizes inferred from tensor shapes, and settings known for published models.

Published models are recognised by depth, width and the first cutoff.

Shape letters used in this module: L layers, N heads, H head width, D hidden width, F inner
width.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

from txl_tf.config.base import MAX_TOKEN_IDS, MAX_WIDTH
from txl_tf.config.model import ModelConfig
from txl_tf.convert.foreign_tensors import Shape, TensorDifferences, mismatch
from txl_tf.errors import MismatchError

DEFAULT_SEGMENT_LENGTH = 128

_LARGE_CHARACTERS = {
    "segment_length": 128,
    "memory_length": 3800,
    "clamp_length": 1000,
    "same_length": True,
    "dropout": 0.15,
    "attention_dropout": 0.15,
}
_BASE_CHARACTERS = {
    "segment_length": 80,
    "memory_length": 2100,
    "clamp_length": 820,
    "same_length": True,
    "dropout": 0.1,
}
_LARGE_WIKITEXT = {
    "segment_length": 128,
    "memory_length": 1600,
    "clamp_length": 1000,
    "same_length": True,
    "dropout": 0.2,
    "attention_dropout": 0.2,
}
_BASE_WIKITEXT = {
    "segment_length": 64,
    "memory_length": 640,
    "clamp_length": 400,
    "same_length": True,
    "dropout": 0.1,
}
_SENTENCES = {"segment_length": 32, "memory_length": 128, "same_length": True}

_SETTINGS: dict[tuple[int, int, int | None], dict[str, Any]] = {
    (24, 1024, None): _LARGE_CHARACTERS,
    (12, 512, None): _BASE_CHARACTERS,
    (18, 1024, 20000): _LARGE_WIKITEXT,
    (16, 410, 20000): _BASE_WIKITEXT,
    (16, 512, 19997): _BASE_WIKITEXT,
    (18, 1024, 19997): _LARGE_WIKITEXT,
    (24, 1280, 60000): {**_SENTENCES, "dropout": 0.05, "attention_dropout": 0.05},
    (18, 1024, 60000): {**_SENTENCES, "dropout": 0.1},
}


def published_settings(sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the published model of these sizes; empty for other models."""
    cutoffs = sizes.get("cutoffs") or (None,)
    return dict(_SETTINGS.get((sizes["num_layers"], sizes["hidden_dim"], cutoffs[0]), {}))


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
    shapes: dict[str, Shape], name: str, ranks: tuple[int, ...], where: str
) -> Shape:
    """Returns the shape of a tensor that every checkpoint of this kind has.

    Raises MismatchError if it is missing or has another number of axes.
    """
    if name not in shapes:
        raise mismatch(TensorDifferences(missing=(name,)), where)
    shape = shapes[name]
    if len(shape) not in ranks or 0 in shape:
        rank = " or ".join(map(str, ranks))
        text = f"{name} is {shape}, not of {rank} axes"
        raise mismatch(TensorDifferences(misshapen=(text,)), where)
    return shape


def count_numbered(shapes: Mapping[str, Any], pattern: str) -> int:
    """Counts layers or clusters by the numbers in tensor names."""
    matches = (re.match(pattern, name) for name in shapes)
    numbers = {int(match.group(1)) for match in matches if match}
    highest = max(numbers, default=-1)
    if highest < 2 * len(numbers):
        return highest + 1
    # A number far beyond the others belongs to an unexpected tensor.
    return next(number for number in itertools.count() if number not in numbers)


def division_factor_of(widths: list[int], where: str) -> int:
    """Infers the ratio of the widths of consecutive clusters; MismatchError if none fits."""
    if len(widths) == 1:
        return 1
    for factor in range(1, widths[0] + 1):
        if all(widths[0] // factor**i == width for i, width in enumerate(widths)):
            return factor
    raise MismatchError(
        f"The widths of the clusters, {widths}, do not fall by one factor.",
        where=where,
        remedy="Such a checkpoint cannot be loaded.",
    )


def cutoffs_of(cluster_sizes: list[int]) -> tuple[int, ...]:
    """Returns the first ids of all clusters except the first."""
    return tuple(itertools.accumulate(cluster_sizes[:-1]))


def check_settings(settings: dict[str, Any]) -> None:
    """Checks settings as far as possible without a checkpoint.

    Raises ValueError if one is no such field, is not valid, or has no counterpart in other
    implementations.
    """
    unknown = sorted(set(settings) - set(ModelConfig.__dataclass_fields__))
    if unknown:
        raise ValueError(
            "What shapes cannot tell is given by fields of `ModelConfig`, such as "
            f"`memory_length` or `clamp_length`. Received: {', '.join(unknown)}"
        )
    config = ModelConfig.from_dict({**_ANY_SIZES, **settings})
    if config.position_encoding != "transformer_xl":
        raise ValueError(
            '`position_encoding` must be "transformer_xl" for a model of another implementation. '
            f"Received: position_encoding={config.position_encoding!r}"
        )


def config_from(
    sizes: dict[str, Any],
    defaults: dict[str, Any],
    settings: dict[str, Any],
    where: str,
    stored: dict[str, Any] | None = None,
    origins: dict[str, str] | None = None,
) -> ModelConfig:
    """Merges a configuration and fills `origins` with the origin of every field, in words.

    Precedence: `sizes` of the tensors, `settings` of the caller, `stored` beside the tensors,
    `defaults` of the implementation, published model. Raises MismatchError if they contradict the
    tensors or make no model, ValueError if a setting is not valid or the memory length is missing.
    """
    differing = [
        f"{name}={sizes[name]!r}, not {settings[name]!r}"
        for name in settings
        if name in sizes and _plain(sizes[name]) != _plain(settings[name])
    ]
    if differing:
        raise MismatchError(
            f"The tensors of the checkpoint say {'; '.join(differing)}.",
            where=where,
            remedy="Leave out what the checkpoint tells itself.",
        )
    try:
        ModelConfig.from_dict({"segment_length": 1, "memory_length": 0, **sizes})
    except ValueError as error:
        raise MismatchError(
            f"The tensors of the checkpoint make no model: {error}",
            where=where,
            remedy="Check that it is a whole checkpoint of this implementation.",
        ) from error
    sources: dict[str, Mapping[str, Any]] = {
        "assumed: the default": {"segment_length": DEFAULT_SEGMENT_LENGTH},
        "assumed: as in the published model of these sizes": published_settings(sizes),
        "assumed: as in the code that wrote it": defaults,
        "found in config.json": stored or {},
        "given": settings,
        "found in the tensors": sizes,
    }
    values: dict[str, Any] = {}
    found = {field.name: "assumed: the default" for field in dataclasses.fields(ModelConfig)}
    for origin, source in sources.items():
        values |= source
        found |= dict.fromkeys(source, origin)
    if origins is not None:
        origins |= found
    if "memory_length" not in values:
        raise ValueError(
            "`memory_length` must be given, because the checkpoint does not tell it and is of no "
            f"published size. Received: {settings or 'no settings'}"
        )
    return ModelConfig.from_dict(values)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
