"""Batches of texts in memory: their order, their sources and their refusals."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.data.training_segments import TrainingSegments

WORDS = WordTokenizer(["<S>", "<unk>", "a", "b"], WordRule(add_double_eos=True))
DOCUMENTS = [b"a b\nb a", b"", b"a\r\nb\nb b\n"] * 20


@pytest.mark.parametrize(("num_rows", "length", "num_tokens"), [(3, 5, 100), (1, 7, 8), (4, 1, 9)])
def test_each_row_continues_and_each_of_its_tokens_is_an_input_once(num_rows, length, num_tokens):
    batches = ordered_batches(np.arange(num_tokens), None, num_rows, length)
    x, y = (np.concatenate(part, axis=1) for part in zip(*batches.as_numpy_iterator(), strict=True))
    assert len(batches) == (num_tokens - 1) // (num_rows * length)
    assert x.shape == (num_rows, len(batches) * length)
    np.testing.assert_array_equal(x.reshape(-1), np.arange(x.size))
    np.testing.assert_array_equal(y, x + 1)
    assert batches.element_spec == (tf.TensorSpec((num_rows, length), tf.int32),) * 2


def test_batches_equal_those_of_the_prepared_text(tmp_path):
    folder = str(tmp_path / "data")
    prepare_dataset({"train": DOCUMENTS}, WORDS, folder, "lines", tokens_per_record=16)
    dataset = PreparedDataset.open(folder)
    described = f"<PreparedDataset {folder!r} (words, 4 ids): train={dataset.num_tokens('train')}"
    assert repr(dataset) == f"{described} tokens>"
    plan = SegmentPlan(num_tokens=dataset.num_tokens("train"), num_rows=3, segment_length=8)
    reader = TrainingSegments(dataset, "train", plan)
    segments = reader.dataset_fn(0, range(3), 3, plan.steps_per_epoch)
    batches = ordered_batches(DOCUMENTS, WORDS, 3, 8)
    assert len(batches) == plan.steps_per_epoch > 3
    for (x, y), expected in zip(batches, segments, strict=True):
        np.testing.assert_array_equal(x, expected["token_ids"])
        np.testing.assert_array_equal(y, expected["target_ids"])


@pytest.mark.parametrize(
    "given",
    [
        "h\u00e9llo",
        "h\u00e9llo".encode(),
        list("h\u00e9llo".encode()),
        ["h\u00e9", b"llo"],
        ("h\u00e9", np.frombuffer(b"llo", np.uint8)),
        np.array(["h\u00e9", "llo"]),
        (each for each in ("h\u00e9", b"llo")),
        [np.int64(each) for each in "h\u00e9llo".encode()],
        tf.constant(list("h\u00e9llo".encode())),
        tf.data.Dataset.from_tensor_slices(["h\u00e9", "llo"]),
        tf.data.Dataset.from_tensor_slices(["h\u00e9", "llo"]).batch(2),
    ],
)
def test_texts_and_ids_of_many_kinds_are_one_stream(given):
    ids = token_stream(given, ByteTokenizer(), 256)
    assert (bytes(ids.tolist()).decode(), ids.dtype) == ("h\u00e9llo", np.uint8)


@pytest.mark.parametrize(
    ("given", "tokenizer", "error", "message"),
    [
        ("abcdef", ByteTokenizer(), ValueError, "at least 7 tokens .*=2 and .*=3.*: 6 tokens"),
        ([], None, ValueError, "Received: 0 tokens"),
        ([0, 1, 4] * 9, WORDS, ValueError, r"must be in \[0, 4\). Received: ids from 0 to 4"),
        ([-1] * 9, None, ValueError, r"must be in \[0, .* Received: ids from -1"),
        ("text" * 9, None, ValueError, "must be a `Tokenizer` for texts"),
        ("text" * 9, "bytes", ValueError, "must be a `Tokenizer`.*tokenizer='bytes'"),
        (["a", b"a\n\xff"], WORDS, ValueError, "Document 2: .*UTF-8.* line 2, byte 2"),
        ([0.5] * 9, None, TypeError, "token ids.* Received: float"),
        ([True] * 9, None, TypeError, "token ids.* Received: bool"),
        ({"text": "a" * 9}, ByteTokenizer(), TypeError, "Received: dict"),
        (None, ByteTokenizer(), TypeError, "Received: NoneType"),
    ],
)
def test_inputs_that_cannot_be_read_are_refused_in_a_sentence(given, tokenizer, error, message):
    with pytest.raises(error, match=message) as failure:
        ordered_batches(given, tokenizer, 2, 3)
    assert "\n" not in str(failure.value)
