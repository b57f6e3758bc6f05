"""Corpora, tokenizers, prepared data sets and the reader that keeps them in order."""

from txl_tf.imports import lazy_names

# Loaded on first use: the command line checks arguments with these modules
# before TensorFlow, which takes seconds to import, is needed.
_MODULES = {
    "ByteTokenizer": "txl_tf.data.tokenizers.byte_tokenizer",
    "CharacterTraining": "txl_tf.data.vocabularies.character_training",
    "FileDocuments": "txl_tf.data.text_sources.file_documents",
    "JsonLinesDocuments": "txl_tf.data.text_sources.json_lines_documents",
    "LineDocuments": "txl_tf.data.text_sources.line_documents",
    "Manifest": "txl_tf.data.manifest",
    "PreparedDataset": "txl_tf.data.prepared_dataset",
    "RecordWriter": "txl_tf.data.record_writer",
    "SegmentPlan": "txl_tf.data.segment_plan",
    "SegmentReader": "txl_tf.data.segment_reader",
    "SentencePieceTraining": "txl_tf.data.vocabularies.sentence_piece_training",
    "SeparatedDocuments": "txl_tf.data.text_sources.separated_documents",
    "ShardManifest": "txl_tf.data.shard_manifest",
    "SplitManifest": "txl_tf.data.split_manifest",
    "Tokenizer": "txl_tf.data.tokenizer",
    "WordPieceTraining": "txl_tf.data.vocabularies.word_piece_training",
    "WordRule": "txl_tf.data.tokenizers.word_rule",
    "WordTraining": "txl_tf.data.vocabularies.word_training",
    "dataset_tokenizer": "txl_tf.data.vocabularies.dataset_tokenizer",
    "prepare_dataset": "txl_tf.data.preparation",
    "prepare_with_beam": "txl_tf.data.beam.preparation",
    "python_standard_library_splits": "txl_tf.data.corpora.python_standard_library",
    "split_by_file": "txl_tf.data.text_sources.split_documents",
    "split_by_fraction": "txl_tf.data.text_sources.split_documents",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
