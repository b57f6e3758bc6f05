"""The figures of one cell of an ablation, and the file they are kept in."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Self

from pipelines.analysis.ablation_cell import AblationCell
from pipelines.analysis.attention_length import AttentionLength
from pipelines.analysis.measured_loss import MeasuredLoss
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.file_storage import make_folder, write_file
from txl_tf.training.run_identity import differing_settings

_FORMAT_VERSION = 1
_FILE = "result.json"


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
            values = json.loads(path.read_bytes())
            if values["format_version"] != _FORMAT_VERSION:
                raise ValueError(f"format version {values['format_version']}")
            result = cls(settings=values["settings"], figures=_figures(values["figures"]))
        except FileNotFoundError:
            return cls(settings=settings)
        except (ValueError, KeyError, TypeError) as error:
            raise DataDamagedError(
                f"The figures of a run cannot be read: {error}",
                where=str(path),
                remedy="Remove the file; they are measured again from the trained weights.",
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

    def write(self, folder: Path, cell: AblationCell) -> None:
        """Writes the file, which is the old or the new one at every moment.

        Args:
            folder: path of the study.
            cell: `AblationCell`.
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
        make_folder(str(folder / cell.name))
        write_file(str(folder / cell.name / _FILE), (json.dumps(values, indent=1) + "\n").encode())


def _figures(rows: list[dict[str, Any]]) -> dict[AttentionLength, MeasuredLoss]:
    return {
        AttentionLength.from_dict(row["attention_length"]): MeasuredLoss(**row["loss"])
        for row in rows
    }
