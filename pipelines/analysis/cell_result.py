"""The figures of one cell of an ablation, and the file they are kept in."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from pipelines.analysis.ablation_cell import AblationCell
from pipelines.analysis.attention_length import AttentionLength
from pipelines.analysis.measured_loss import MeasuredLoss
from txl_tf.errors import DataDamagedError, MismatchError, StorageError
from txl_tf.file_storage import first_line
from txl_tf.training.run_identity import differing_settings
from txl_tf.untrusted_files import read_json_object
from txl_tf.writable_folder import WritableFolder

_FORMAT_VERSION = 1
_FILE = "result.json"
_REMEDY = "Remove the file; they are measured again from the trained weights."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellResult:
    """What has been measured of a cell so far.

    Attributes:
        settings: dict of JSON values, see `AblationCell.settings`.
        figures: dict from `AttentionLength` to the `MeasuredLoss` there.
    """

    settings: dict[str, Any]
    figures: dict[AttentionLength, MeasuredLoss] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, cell: AblationCell, data: dict[str, Any]) -> Self:
        """Reads what is there, and checks that it is of this cell.

        Args:
            folder: path of the study.
            cell: `AblationCell`.
            data: dict that `data_identity` returned.

        Returns:
            The `CellResult`; without figures where nothing has been measured.

        Raises:
            MismatchError: If it was measured with other settings.
            DataDamagedError: If the file cannot be understood.
        """
        path = folder / cell.name / _FILE
        # As JSON has them, which knows no tuples.
        settings = json.loads(json.dumps(cell.settings(data)))
        try:
            values = read_json_object(str(path), remedy=_REMEDY)
            if values.get("format_version") != _FORMAT_VERSION:
                raise ValueError(f"format version {ascii(values.get('format_version'))[:40]}")
            if not isinstance(values.get("settings"), dict):
                raise ValueError("`settings` is no object")
            result = cls(settings=values["settings"], figures=_figures(values.get("figures")))
        except FileNotFoundError:
            return cls(settings=settings)
        except OSError as error:
            raise StorageError(
                f"The figures of a run cannot be read: {first_line(error)}",
                where=str(path),
                remedy="Check the storage and the permissions.",
            ) from error
        except ValueError as error:
            raise DataDamagedError(
                f"The figures of a run cannot be read: {first_line(error)}",
                where=str(path),
                remedy=_REMEDY,
            ) from error
        differences = differing_settings(result.settings, settings)
        if differences:
            raise MismatchError(
                f"The study was begun with other settings; {differences}",
                where=str(path),
                remedy="Give the study and data it was begun with, or choose a new --out.",
            )
        return result

    def missing(self, cell: AblationCell) -> list[AttentionLength]:
        """The lengths of a cell that have not been measured.

        Args:
            cell: `AblationCell`.

        Returns:
            List of `AttentionLength`.
        """
        return [length for length in cell.attention_lengths() if length not in self.figures]

    def write(
        self, folder: Path, cell: AblationCell, writable: WritableFolder | None = None
    ) -> None:
        """Writes the file, which is the old or the new one at every moment.

        Args:
            folder: path of the study.
            cell: `AblationCell`.
            writable: optional `WritableFolder` of the lock of the cell's folder.

        Raises:
            OutputExistsError: If the lock was lost; nothing is written.
        """
        values = {
            "format_version": _FORMAT_VERSION,
            "settings": self.settings,
            "figures": [
                {
                    "attention_length": length.to_dict(),
                    "loss": dataclasses.asdict(loss),
                    # For whoever reads the file; they follow from the totals.
                    "nats_per_token": loss.nats_per_token,
                    "perplexity": loss.perplexity,
                }
                for length, loss in self.figures.items()
            ],
        }
        writable = writable or WritableFolder.at(folder / cell.name)
        writable.write(_FILE, (json.dumps(values, indent=1) + "\n").encode())


def _figures(rows: Any) -> dict[AttentionLength, MeasuredLoss]:
    if not isinstance(rows, list):
        raise ValueError("`figures` is no list")
    figures = {}
    for row in rows:
        try:
            length = AttentionLength.from_dict(row["attention_length"])
            loss = MeasuredLoss(**row["loss"])
        except (LookupError, TypeError) as error:
            raise ValueError(f"a row of `figures` is none: {first_line(error)}") from error
        _check_row(length, loss)
        if (row.get("nats_per_token"), row.get("perplexity")) != (
            loss.nats_per_token,
            loss.perplexity,
        ):
            raise ValueError("a figure does not follow from its totals")
        figures[length] = loss
    return figures


def _check_row(length: AttentionLength, loss: MeasuredLoss) -> None:
    for name, value in length.to_dict().items():
        is_flag = name in ("same_length", "is_training_length")
        is_valid = type(value) is bool if is_flag else type(value) is int and value >= 0
        if not is_valid and not (name == "stride" and value is None):
            raise ValueError(f"`attention_length.{name}` is {ascii(value)[:40]}")
    for name, value in dataclasses.asdict(loss).items():
        kinds = (int,) if name == "num_tokens" else (int, float)
        least = 0 if name in ("total_nats", "seconds") else 1
        if type(value) not in kinds or value < least:
            raise ValueError(f"`loss.{name}` is {ascii(value)[:40]}")
