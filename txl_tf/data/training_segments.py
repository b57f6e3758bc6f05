"""Reader of a prepared split that follows the plan of its segments.

Letters: b rows of one replica, T segment length.
"""

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from txl_tf.data.prepared_dataset import PreparedDataset, verify_shard
from txl_tf.data.records import DOCUMENT_STARTS_FEATURE, TOKENS_FEATURE, frame_bytes, token_dtype
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.errors import DataDamagedError, StorageError, first_line
from txl_tf.storage.files import is_remote

_READ_BUFFER_BYTES = 256 << 10
# Smaller than the read-ahead of the storage client, which then sets the size of the requests.
_REMOTE_BUFFER_BYTES = 16 << 10
_PREFETCHED_BATCHES = 16


class TrainingSegments:
    """Reader of one split in the order of a plan.

    Its data sets consist of TensorFlow operations only, so that they also run outside this process,
    on the hosts of a TPU slice. A stretch is a sequence of consecutive segments that one row reads.

    Args:
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        plan: `SegmentPlan` for the number of tokens of the split.
        with_document_starts: bool. If `True`, batches tell where documents begin. Defaults to
            `False`.

    Raises:
        ValueError: If there is no such split.
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        split: str,
        plan: SegmentPlan,
        with_document_starts: bool = False,
    ) -> None:
        manifest = dataset.manifest
        self._folder = dataset.folder
        self._shards = manifest.split(split).shards
        self._shard_starts = np.cumsum([0, *(shard.tokens for shard in self._shards)])[:-1]
        self._plan = plan
        self._with_document_starts = with_document_starts
        self._tokens_per_record = manifest.tokens_per_record
        self._frame_bytes = frame_bytes(manifest.tokens_per_record, manifest.token_bytes)
        self._is_remote = is_remote(dataset.folder)
        self._stored_type = tf.as_dtype(token_dtype(manifest.token_bytes))

    # AutoGraph would take seconds, and nothing here needs it.
    @tf.autograph.experimental.do_not_convert
    def dataset_fn(
        self, first_step: int, rows: range, per_replica_rows: int, num_steps: int
    ) -> tf.data.Dataset:
        """Makes the data set of one host. Tokens before `first_step` are not read.

        Args:
            first_step: int. First step, counted from 0 over all epochs.
            rows: range. Rows of this host. Numbers from the plan's number of rows on repeat the
                rows of the plan from row 0 on, so that all hosts have equal shares.
            per_replica_rows: int. Rows `b` of one replica.
            num_steps: int. Number of steps.

        Returns:
            `tf.data.Dataset` whose elements are batches of one replica: `token_ids` and
            `target_ids`, int32 `[b, T]`, and `start_of_stream`, bool `[b]`, which is true if a row
            does not continue its previous segment. With `with_document_starts` also
            `document_starts`, bool `[b, T]`, which is true for the first token of each document.
            The replicas take turns: the first element is for the first replica at `first_step`,
            the next one for the second replica, and so on; then the next step follows.

        Raises:
            ValueError: If `per_replica_rows` does not divide the number of rows.
        """
        if len(rows) % per_replica_rows:
            raise ValueError(
                f"`per_replica_rows` must divide {len(rows)} rows. Received: {per_replica_rows}"
            )
        stretches = [tf.constant(each) for each in self._stretches(rows, first_step, num_steps)]

        def read_row(row: tf.Tensor) -> tf.data.Dataset:
            of_row = tuple(each[row] for each in stretches)
            return tf.data.Dataset.from_tensor_slices(of_row).flat_map(self._read_stretch)

        def widen(segments: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            shape = [per_replica_rows, self._plan.segment_length]
            columns = dict(segments)
            for name in ("token_ids", "target_ids"):
                columns[name] = tf.ensure_shape(tf.cast(segments[name], tf.int32), shape)
            if self._with_document_starts:
                columns["document_starts"] = tf.ensure_shape(segments["document_starts"], shape)
            return columns

        # From a store rows are read in parallel, so that no row waits for the requests of another;
        # their order stays the same. From a local disk one thread is far faster than training.
        segments = tf.data.Dataset.range(len(rows)).interleave(
            read_row,
            cycle_length=len(rows),
            block_length=1,
            num_parallel_calls=len(rows) if self._is_remote else None,
            deterministic=True if self._is_remote else None,
        )
        batches = segments.batch(per_replica_rows, drop_remainder=True).map(widen)
        options = tf.data.Options()
        options.deterministic = True
        # There is no degree of parallelism to tune. The tuning thread may miss that the iterator
        # ends; deleting the iterator then waits for the thread's next round, up to a minute.
        options.autotune.enabled = False
        # The caller has divided the rows among the hosts; sharding them again would lose some.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return batches.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def describe_row(self, step: int, row: int) -> str:
        """Describes in words where the segment of a row is stored: its tokens, file and record."""
        first = int(self._plan.positions(step)[row])
        last = first + self._plan.segment_length - 1
        index = int(np.searchsorted(self._shard_starts, first, side="right")) - 1
        record = (first - self._shard_starts[index]) // self._tokens_per_record
        place = f"{self._shards[index].file} record {record}"
        return f"row {row} (tokens {first} to {last}, from {place})"

    def explain_data_loss(self, error: Exception) -> DataDamagedError | StorageError:
        """Returns the error to raise in place of an error of TensorFlow that reading has raised.

        It names the first file that differs from the manifest, or reports that no file differs.
        """
        for shard in self._shards:
            try:
                verify_shard(self._folder, shard)
            except DataDamagedError as damage:
                return damage
        return StorageError(
            f"Reading failed, but every file matches the manifest now: {first_line(error)}",
            where=self._folder,
            remedy="Start again; if reading fails again, check the storage and the memory.",
        )

    def _stretches(self, rows: range, first_step: int, num_steps: int) -> tuple[np.ndarray, ...]:
        """Returns the stretches of each row: two for each epoch, before and after the last segment.

        The three arrays `[rows, stretches]` are the first token, the number of segments, which may
        be 0, and whether memory is reset before the stretch.
        """
        plan, steps, stop_step = self._plan, self._plan.steps_per_epoch, first_step + num_steps
        first_steps = [first_step, *range((first_step // steps + 1) * steps, stop_step, steps)]
        counts = np.diff([*first_steps, stop_step])
        own_rows = np.asarray(rows) % plan.num_rows
        first_tokens = np.stack([plan.positions(step) for step in first_steps], axis=1)[own_rows]
        starts = np.stack([plan.starts(step) for step in first_steps], axis=1)[own_rows]
        shifts = np.array([plan.rotation(step // steps)[0] for step in first_steps])
        # A row that reaches the last segment of the stream continues at the first one.
        until_last = plan.num_segments - (first_tokens - shifts) // plan.segment_length
        before = np.minimum(counts, until_last)
        stretches = (
            (first_tokens, np.broadcast_to(shifts, before.shape)),
            (before, counts - before),
            (starts, np.ones_like(starts)),
        )
        return tuple(np.stack(pair, axis=-1).reshape(len(rows), -1) for pair in stretches)

    def _read_stretch(
        self, first_token: tf.Tensor, num_segments: tf.Tensor, starts: tf.Tensor
    ) -> tf.data.Dataset:
        """Reads the segments of a stretch, from the record with its first token on."""
        # 1. The shards from the first token to the last target.
        shard_starts = tf.constant(self._shard_starts, tf.int64)
        paths = tf.constant([os.path.join(self._folder, shard.file) for shard in self._shards])
        last_token = first_token + num_segments * self._plan.segment_length
        shard_range = tf.searchsorted(
            shard_starts, tf.stack([first_token, last_token]), side="right", out_type=tf.int64
        )
        shard, shard_stop = shard_range[0] - 1, shard_range[1]
        # 2. The records from the one with the first token on. Frames of full records have equal
        # sizes, so its offset is known.
        token_in_shard = first_token - shard_starts[shard]
        byte_offset = token_in_shard // self._tokens_per_record * self._frame_bytes
        records = tf.raw_ops.TFRecordDatasetV2(
            filenames=paths[shard:shard_stop],
            compression_type="",
            buffer_size=_REMOTE_BUFFER_BYTES if self._is_remote else _READ_BUFFER_BYTES,
            byte_offsets=tf.concat(
                [byte_offset[None], tf.zeros([shard_stop - shard - 1], tf.int64)], axis=0
            ),
        )
        tokens = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
        # 3. The segments, cut from each record and the tokens that the previous record left over.
        skipped_tokens = token_in_shard % self._tokens_per_record
        empty = tf.zeros([0], self._stored_type)
        left_over = (empty, tf.zeros([0], tf.bool)) if self._with_document_starts else (empty,)
        segments = tokens.map(self._decode).scan((left_over, skipped_tokens, starts), self._cut)
        # A missing segment must be an error, because it would misalign the rows.
        exactly = tf.data.experimental.assert_cardinality(num_segments)
        return segments.unbatch().take(num_segments).apply(exactly)

    def _decode(self, record: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Returns the tokens of a record and, if requested, its document starts."""
        feature = tf.io.FixedLenFeature([], tf.string)
        names = (TOKENS_FEATURE, DOCUMENT_STARTS_FEATURE)
        example = tf.io.parse_single_example(record, dict.fromkeys(names, feature))
        tokens = tf.io.decode_raw(example[TOKENS_FEATURE], self._stored_type)
        if not self._with_document_starts:
            return (tokens,)
        packed_bits = tf.io.decode_raw(example[DOCUMENT_STARTS_FEATURE], tf.uint8)
        places = tf.constant([[1 << bit for bit in range(8)]], tf.uint8)
        bits = tf.not_equal(tf.bitwise.bitwise_and(packed_bits[:, None], places), 0)
        return tokens, tf.reshape(bits, [-1])[: tf.size(tokens)]

    def _cut(
        self,
        state: tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor],
        record: tuple[tf.Tensor, ...],
    ) -> tuple[tuple[tuple[tf.Tensor, ...], tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
        """Cuts the tokens that are left over and one more record into whole segments.

        The state has the streams that are left over, the number of tokens to skip at the beginning
        of the record, and whether memory is reset before the next segment. The segments need one
        more token, because the last target of a segment is the first input of the next; that token
        is left over again.
        """
        left_over, skipped_tokens, starts = state
        length = self._plan.segment_length
        streams = tuple(
            tf.concat([rest, new[skipped_tokens:]], axis=0)
            for rest, new in zip(left_over, record, strict=True)
        )
        tokens = streams[0]
        num_segments = tf.maximum(tf.size(tokens, tf.int64) - 1, 0) // length
        end = num_segments * length
        segments = {
            "token_ids": tf.reshape(tokens[:end], [num_segments, length]),
            "target_ids": tf.reshape(tokens[1 : end + 1], [num_segments, length]),
            "start_of_stream": tf.logical_and(tf.equal(tf.range(num_segments), 0), starts),
        }
        if self._with_document_starts:
            segments["document_starts"] = tf.reshape(streams[1][:end], [num_segments, length])
        still_starts = tf.logical_and(starts, tf.equal(num_segments, 0))
        rest = tuple(stream[end:] for stream in streams)
        return (rest, tf.zeros_like(skipped_tokens), still_starts), segments
