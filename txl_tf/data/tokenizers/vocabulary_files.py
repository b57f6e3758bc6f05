"""Vocabularies in files of other programs: a list of words, or labels of ids."""

import re
from typing import Any

from txl_tf.config.limits import MAX_TOKEN_IDS
from txl_tf.data.sources.text_files import line_place, numbered_lines, text_blocks, validated_text
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.storage.strict_json import parse_json_object

_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")
_LABELS = "Write a label on each line, in the order of the ids."


def labelled_ids(path: str) -> IdTokenizer:
    """Reads a label per line, or the JSON of `vocab.json` or `tokenizer.json`: ids by label."""
    content = b"".join(validated_text(text_blocks(path), path)).decode()
    labels = content.removesuffix("\n").split("\n")
    if content.lstrip().startswith("{"):
        values = parse_json_object(content, where=path, remedy=_LABELS)
        model = values.get("model")
        added_tokens = values.get("added_tokens", []) if isinstance(model, dict) else []
        try:
            entries: Any = model["vocab"] if isinstance(model, dict) else values
            if isinstance(entries, list):  # pairs with a score, in the order of the ids
                entries = {label: number for number, (label, _) in enumerate(entries)}
            by_id = {number: label for label, number in entries.items()}
            by_id |= {each["id"]: each["content"] for each in added_tokens}
            if {*map(type, by_id)} != {int} or not 0 <= min(by_id) <= max(by_id) < MAX_TOKEN_IDS:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataDamagedError(
                "The JSON has no ids by label, as vocab.json and tokenizer.json have.",
                where=path,
                remedy=_LABELS,
            ) from error
        labels = [by_id.get(number, "") for number in range(max(by_id) + 1)]
    return IdTokenizer(len(labels), labels)


def listed_words(path: str, rule: WordRule) -> WordTokenizer:
    """Reads a list of one word per line; a number after the word, such as its count, is ignored."""
    words: dict[str, None] = {}
    for number, offset, line in numbered_lines(path):
        try:
            word, *others = line.decode().split()
            is_entry = len(others) <= 1 and all(map(_NUMBER.fullmatch, others))
        except ValueError:  # not UTF-8, or nothing but white space
            is_entry = False
        if not is_entry:
            raise DataDamagedError(
                f"An entry must be a word in UTF-8, or a word and its count, not {line[:80]!r}.",
                where=line_place(path, number, offset),
                remedy="Write one word per line. Join a word's parts, in the text too: Note_On_60.",
            )
        words[word] = None
    unknown = next((token for token in ("<unk>", "<UNK>") if token in words), None)
    try:
        return WordTokenizer(list(words), rule, unknown_token=unknown)
    except ValueError as error:
        raise DataDamagedError(
            f"The list of words cannot be used: {' '.join(str(error).split())[:200]}",
            where=path,
            remedy="Correct the list.",
        ) from error
