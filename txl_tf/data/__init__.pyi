"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.data.preparation import prepare_dataset as prepare_dataset
from txl_tf.data.prepared_dataset import (
    PreparedDataset as PreparedDataset,
    dataset_tokenizer as dataset_tokenizer,
)
from txl_tf.data.sources.id_files import IdDocuments as IdDocuments
from txl_tf.data.sources.text_files import TextDocuments as TextDocuments
from txl_tf.data.splits import split_by_fraction as split_by_fraction
from txl_tf.data.standard_library import (
    python_standard_library_splits as python_standard_library_splits,
)
from txl_tf.data.text_batches import ordered_batches as ordered_batches
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer as ByteTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer as IdTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer as Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule as WordRule
from txl_tf.data.vocabulary_training import (
    CharacterTraining as CharacterTraining,
    SentencePieceTraining as SentencePieceTraining,
    WordTraining as WordTraining,
)
