"""Time per token with memory and with sliding windows: `txl analyze speed`.

    txl analyze speed
    txl analyze speed --attention 800,3800 --config FILE --set model.num_layers=2 --json

Table 7 of Dai et al. (2019): the time of a token against that of the vanilla
model of Al-Rfou et al. (2019), of the same size and on the same machine, which
processes a whole window for every token that it predicts. Weights and tokens
are random: the time does not depend on them.
"""

import argparse
import json
import sys

from pipelines.arguments import (
    MAX_COUNT,
    add_config_argument,
    add_json_argument,
    add_override_argument,
    in_range,
    load_experiment,
    numbers_in_range,
)
from pipelines.memory_needs import reading_needs, require_memory_of
from txl_tf.config.base import MAX_TOKENS
from txl_tf.errors import UsageError

_ATTENTION = "800,1800,2800,3800"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    add_config_argument(
        parser,
        default="enwik8_base",
        help="experiment whose model is measured (default: enwik8_base, 12 layers of 512)",
    )
    parser.add_argument(
        "--attention",
        metavar="TOKENS,...",
        type=numbers_in_range("--attention", 1, MAX_TOKENS),
        dest="attention_lengths",
        default=_ATTENTION,
        help=f"attention lengths: tokens of the window, and of the memory (default: {_ATTENTION})",
    )
    parser.add_argument(
        "--segment-length",
        type=in_range("--segment-length", 1, MAX_TOKENS),
        metavar="TOKENS",
        default=128,
        help="tokens that are read at a time with a memory, besides 1 (default: 128)",
    )
    parser.add_argument(
        "--repeats",
        type=in_range("--repeats", 1, MAX_COUNT),
        metavar="N",
        default=5,
        help="windows that are timed; medians are reported (default: 5)",
    )
    add_json_argument(parser)
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.experiment = load_experiment(arguments.config, arguments.overrides)
    model = arguments.experiment.model
    if not model.has_relative_positions:
        raise UsageError(
            "Only a model with relative positions carries a memory that can be compared.",
            where=f"--config {arguments.config}",
            remedy="Its model.position_encoding must be one of transformer_xl, shaw.",
        )
    longest, segment_length = max(arguments.attention_lengths), arguments.segment_length
    needs = [
        *reading_needs(model, 1, longest, 0, f"--attention {longest}"),
        *reading_needs(model, 1, segment_length, longest, f"--segment-length {segment_length}")[1:],
    ]
    require_memory_of(needs, "The measurement")


def run(arguments: argparse.Namespace) -> None:
    """Measures and prints a table."""
    from pipelines.analysis.speed_study import (
        SpeedMeasurement,
        best_slowdown,
        describe,
        speed_report,
    )

    measurement = SpeedMeasurement(
        arguments.experiment, arguments.segment_length, arguments.repeats
    )
    measured = {}
    for length in arguments.attention_lengths:
        print(f"measuring an attention of {length:,} tokens", file=sys.stderr, flush=True)
        measured[length] = measurement.measure(length)
        print(best_slowdown(length, measured[length]), file=sys.stderr, flush=True)
    report = speed_report(arguments.experiment, arguments.config, measured)
    print(json.dumps(report) if arguments.json else describe(report))


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("analyze", ["speed", *sys.argv[1:]]))
