"""Corpora, tokenizers, prepared data sets and the reader that keeps them in order."""

from txl_tf.imports import lazy_names

# Loaded on first use: the command line checks arguments with these modules
# before TensorFlow, which takes seconds to import, is needed.
_MODULES = {
    "ByteTokenizer": "txl_tf.data.tokenizers.character_tokenizer",
    "CharacterTraining": "txl_tf.data.vocabulary_training",
    "FileDocuments": "txl_tf.data.documents",
    "JsonLinesDocuments": "txl_tf.data.documents",
    "LineDocuments": "txl_tf.data.documents",
    "Manifest": "txl_tf.data.manifest",
    "PreparedDataset": "txl_tf.data.prepared_dataset",
    "RecordWriter": "txl_tf.data.records",
    "SegmentPlan": "txl_tf.data.segment_plan",
    "SegmentReader": "txl_tf.data.segment_reader",
    "SentencePieceTraining": "txl_tf.data.vocabulary_training",
    "SeparatedDocuments": "txl_tf.data.documents",
    "ShardManifest": "txl_tf.data.manifest",
    "SplitManifest": "txl_tf.data.manifest",
    "Tokenizer": "txl_tf.data.tokenizers.tokenizer",
    "WordPieceTraining": "txl_tf.data.vocabulary_training",
    "WordRule": "txl_tf.data.tokenizers.word_splitting",
    "WordTraining": "txl_tf.data.vocabulary_training",
    "dataset_tokenizer": "txl_tf.data.prepared_dataset",
    "prepare_dataset": "txl_tf.data.preparation",
    "prepare_with_beam": "txl_tf.data.beam",
    "python_standard_library_splits": "txl_tf.data.corpora.standard_library",
    "split_by_file": "txl_tf.data.splits",
    "split_by_fraction": "txl_tf.data.splits",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
