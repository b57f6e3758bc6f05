"""Splits texts into words and joins them, as TensorFlow operations."""

import tensorflow as tf

from txl_tf.data.tokenizers.word_rule import LINE_MARK, WordRule

# What `str.split` takes for white space, line ends apart.
_WHITE_SPACE = (
    r"[\t\x0b\x0c\x1c-\x1f \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}"
    r"\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
)


def graph_split_words(texts: tf.Tensor, rule: WordRule) -> tf.RaggedTensor:
    """Splits texts as `WordRule.split` does.

    Lower case is that of TensorFlow's Unicode tables (13), which leave alone the
    few capital letters that newer versions added.

    Args:
        texts: string tensor `[B]`. UTF-8.
        rule: `WordRule`. How text is split.

    Returns:
        string ragged tensor `[B, T]`, with `LINE_MARK` for the token of lines.

    Raises:
        tf.errors.InvalidArgumentError: If a text is not UTF-8.
    """
    # Transcoding would replace some characters; it is here for what it refuses.
    checked = tf.strings.unicode_decode(texts, "UTF-8", errors="strict")
    with tf.control_dependencies([checked.values]):
        texts = tf.identity(texts)
    texts = tf.strings.regex_replace(texts, _WHITE_SPACE, " ")
    if rule.lower_case:
        # The operation ends at NUL. U+001F is white space and so no longer in the text.
        texts = tf.strings.regex_replace(texts, r"\x00", "\x1f")
        texts = tf.strings.lower(texts, encoding="utf-8")
        texts = tf.strings.regex_replace(texts, r"\x1f", b"\x00")
    texts = tf.strings.regex_replace(texts, r"\r\n?", "\n")
    if not rule.marks_lines:
        return tf.strings.split(texts)
    mark = b" " + LINE_MARK + b" "
    # The line end at the end of a text begins no further line.
    lines = tf.strings.regex_replace(texts, r"\n\z", "")
    between = mark + mark if rule.add_double_eos else mark
    marked = tf.strings.regex_replace(lines, "\n", between) + mark
    if rule.add_double_eos:
        marked = mark + marked
    return tf.strings.split(tf.where(tf.equal(texts, ""), tf.constant(""), marked))


def graph_join_words(
    token_ids: tf.RaggedTensor, tokens: tf.Tensor, mark_id: int | None, is_double: bool
) -> tf.Tensor:
    """Joins words as `join_words` does.

    Args:
        token_ids: int32 ragged tensor `[B, T]`.
        tokens: string tensor `[V]`. The vocabulary.
        mark_id: optional int. The id that marks lines, where there is one.
        is_double: bool. Whether lines are marked at both ends.

    Returns:
        string tensor `[B]`.

    Raises:
        tf.errors.InvalidArgumentError: If an id is not in the vocabulary.
    """
    words = tf.gather(tokens, token_ids)
    if mark_id is None:
        return tf.strings.reduce_join(words, axis=-1, separator=" ")
    is_mark = tf.equal(token_ids, mark_id)
    words = tf.ragged.map_flat_values(tf.where, is_mark, "\n", words)
    if is_double:
        marks = is_mark.to_tensor(default_value=False)
        is_odd = tf.math.cumsum(tf.cast(marks, tf.int32), axis=1) % 2 == 1
        begins_with_mark = tf.pad(marks, [[0, 0], [0, 1]])[:, :1]
        opens = marks & tf.equal(is_odd, begins_with_mark)
        is_kept = tf.RaggedTensor.from_tensor(~opens, lengths=token_ids.row_lengths())
        words = tf.ragged.boolean_mask(words, is_kept)
    texts = tf.strings.reduce_join(words, axis=-1, separator=" ")
    return tf.strings.regex_replace(tf.strings.regex_replace(texts, " \n", "\n"), "\n ", "\n")
