"""Reader of a column of a Parquet file, which uses pyarrow."""

from collections.abc import Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, errors_as
from txl_tf.imports import require_extra

_ROWS_PER_BATCH = 1024


def parquet_values(path: str, column: str | None) -> Iterator[tuple[Any, str]]:
    """Yields the values of a column with their places, for errors.

    Without `column`, the file must have only one. A column of integers is one value: a NumPy
    vector. Raises UsageError if pyarrow is missing, and DataDamagedError if the file is not Parquet
    or does not have the column.
    """
    require_extra("parquet", "pyarrow", purpose="Reading Parquet", where=path)
    from pyarrow import parquet, types

    with errors_as(
        DataDamagedError,
        (ValueError, OSError),
        "The Parquet file cannot be read",
        path,
        "Get the file again.",
    ):
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        if column is None and len(schema.names) == 1:
            column = schema.names[0]
        if column not in schema.names:
            names = ", ".join(schema.names)[:200]
            raise DataDamagedError(
                f"The column must be one of: {names}. Received: {column}",
                where=path,
                remedy="Name the column: --field NAME",
            )
        if types.is_integer(schema.field(column).type):
            yield file.read([column]).column(0).to_numpy(), path
            return
        batches = file.iter_batches(_ROWS_PER_BATCH, columns=[column])
        values = (value for batch in batches for value in batch.column(0).to_pylist())
        for row, value in enumerate(values):
            yield value, f"{path}, row {row}"
