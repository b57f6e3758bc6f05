"""Corpora, tokenizers, prepared data sets and the reader that keeps them in order."""

import importlib
from typing import Any

# Loaded on first use: the command line checks arguments with these modules
# before TensorFlow, which takes seconds to import, is needed.
_MODULE_OF_NAME = {
    "ByteTokenizer": "tokenizers.byte_tokenizer",
    "CharacterTraining": "vocabularies.character_training",
    "FileDocuments": "text_sources.file_documents",
    "JsonLinesDocuments": "text_sources.json_lines_documents",
    "LineDocuments": "text_sources.line_documents",
    "Manifest": "manifest",
    "PreparedDataset": "prepared_dataset",
    "RecordWriter": "record_writer",
    "SegmentPlan": "segment_plan",
    "SegmentReader": "segment_reader",
    "SentencePieceTraining": "vocabularies.sentence_piece_training",
    "SeparatedDocuments": "text_sources.separated_documents",
    "ShardManifest": "shard_manifest",
    "SplitManifest": "split_manifest",
    "Tokenizer": "tokenizer",
    "WordPieceTraining": "vocabularies.word_piece_training",
    "WordRule": "tokenizers.word_rule",
    "WordTraining": "vocabularies.word_training",
    "dataset_tokenizer": "vocabularies.dataset_tokenizer",
    "prepare_dataset": "preparation",
    "prepare_with_beam": "beam.preparation",
    "python_standard_library_splits": "corpora.python_standard_library",
    "split_by_file": "text_sources.split_documents",
    "split_by_fraction": "text_sources.split_documents",
}

__all__ = list(_MODULE_OF_NAME)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULE_OF_NAME[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULE_OF_NAME))
