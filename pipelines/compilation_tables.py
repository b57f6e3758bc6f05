"""Tables of the report of `txl compile`."""

from typing import Any

from rich.console import Console
from rich.table import Table

_GIBIBYTE = 2**30
_NUM_OPERATIONS = 8
_HINT = "float32 was compiled; see also --set training.dtype_policy=mixed_bfloat16"


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Prints the report of one experiment.

    Args:
        report: dict from `compile_experiment`, with `config` added.
        console: optional `rich.console.Console`.
    """
    console = console or Console()
    console.print(
        f"{report['config']} on {report['topology']}: {report['num_chips']} chips, "
        f"{report['num_replicas']} replicas, {report['dtype_policy']}"
    )
    console.print(_verdict(report))
    columns = [("training", report["training"])]
    if report["largest"] is not None:
        columns.append(("training, most rows", report["largest"]))
    if report["evaluation"] is not None:
        columns.append(("evaluation", report["evaluation"]))
    console.print(_figures([column for column in columns if column[1]["fits"]]))
    for name, values in columns:
        if values["fits"] and name != "evaluation":
            console.print(_work(name, values))
    console.print(_checkpoint(report["checkpoint"]), highlight=False)
    if report["dtype_policy"] == "float32":
        console.print(_HINT, highlight=False)


def _verdict(report: dict[str, Any]) -> str:
    training = report["training"]
    rows, padding = training["rows_per_replica"], training["padding_rows"]
    lines = [
        f"{'fits' if training['fits'] else 'does not fit'}: {rows} rows per replica, "
        f"{_gibibytes(training['needed_bytes'])} of {_gibibytes(training['limit_bytes'])} GiB"
    ]
    if padding:
        lines.append(
            f"{training['global_batch_size']} rows are not a multiple of "
            f"{report['num_replicas']} replicas: {padding} more are computed and not counted"
        )
    if report["largest_rows_per_replica"] is not None:
        lines.append(f"at most {report['largest_rows_per_replica']} rows per replica fit")
    lines += _verdict_on_memory(report)
    return "\n".join(lines)


def _checkpoint(cost: dict[str, Any]) -> str:
    fits = "fits" if cost["fits_notice"] else "does not fit"
    return (
        f"checkpoint: {_gibibytes(cost['bytes'])} GiB, as much room in /tmp for gs://, about "
        f"{cost['upload_seconds']:.0f} s; {fits} the 30 s that a spot VM is given"
    )


def _verdict_on_memory(report: dict[str, Any]) -> list[str]:
    """Describes the memory of training and evaluation together, and whether it fits."""
    evaluation, together = report["evaluation"], report["together"]
    lines = []
    if evaluation is not None and not evaluation["fits"]:
        lines.append(f"the evaluation's {evaluation['rows']} rows do not fit")
    elif report["training"]["fits"]:
        limit = _gibibytes(together["limit_bytes"])
        lines.append(
            f"in HBM at once: {_gibibytes(together['while_training_bytes'])} GiB while training, "
            f"{_gibibytes(together['while_evaluating_bytes'])} while evaluating, of {limit}"
        )
    if not together["fits"]:
        settings = report["fitting_settings"]
        names = (
            None
            if settings is None
            else " ".join(f"--set {name}={str(value).lower()}" for name, value in settings.items())
        )
        lines.append(f"all rows fit with {names}" if names else "no setting makes all rows fit")
    return lines


def _figures(columns: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table("per step", *(name for name, _ in columns))
    rows = {
        "rows per replica": lambda v: str(v["rows_per_replica"]),
        "HBM, GiB: arguments": lambda v: _gibibytes(v["argument_bytes"]),
        "  further output": lambda v: _gibibytes(v["output_bytes"]),
        "  temporary": lambda v: _gibibytes(v["temporary_bytes"]),
        "  program": lambda v: _gibibytes(v["code_bytes"]),
        "  all of a replica's": lambda v: (
            f"{_gibibytes(v['needed_bytes'])} of {_gibibytes(v['limit_bytes'])}"
        ),
        "TFLOP": lambda v: f"{v['flops'] / 1e12:.3f}",
        "GB to and from HBM": lambda v: f"{v['hbm_bytes'] / 1e9:.2f}",
        "GB accessed, by the compiler's count": lambda v: f"{v['bytes_accessed'] / 1e9:.2f}",
        "MB all-reduced": lambda v: f"{v['all_reduce_bytes'] / 1e6:.1f}",
        "MFLOP per token": lambda v: f"{v['flops_per_token'] / 1e6:.1f}",
        "KB to and from HBM per token": lambda v: f"{v['hbm_bytes_per_token'] / 1e3:.1f}",
        "at least, ms: arithmetic": lambda v: _milliseconds(v, "flop_seconds"),
        "  HBM": lambda v: _milliseconds(v, "hbm_seconds"),
        "  all-reduce": lambda v: _milliseconds(v, "all_reduce_seconds"),
        "at most, tokens/s per chip": lambda v: f"{v['tokens_per_second_per_chip']:,.0f}",
    }
    for name, text_of in rows.items():
        table.add_row(name, *(text_of(values) for _, values in columns))
    return table


def _work(name: str, values: dict[str, Any]) -> Table:
    """Describes where memory traffic and estimated cycles go."""
    table = Table(f"{name}: kind of work, then operation", "times", "HBM %", "cycles %")
    details = values["details"]
    total_bytes = max(values["hbm_bytes"], 1)
    groups = details["categories"].values()
    total_cycles = max(sum(group["estimated_cycles"] for group in groups), 1)
    listed = list(details["categories"].items())
    listed += list(details["operations"].items())[:_NUM_OPERATIONS]
    for title, group in listed:
        table.add_row(
            title,
            str(group["count"]),
            f"{100 * group['hbm_bytes'] / total_bytes:.1f}",
            f"{100 * group['estimated_cycles'] / total_cycles:.1f}",
        )
    return table


def _gibibytes(num_bytes: float) -> str:
    return f"{num_bytes / _GIBIBYTE:.2f}"


def _milliseconds(values: dict[str, Any], name: str) -> str:
    return f"{1000 * values['roofline'][name]:.2f}"
