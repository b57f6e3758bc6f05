"""Published corpora by name."""

from txl_tf.data.corpora.corpus import Corpus
from txl_tf.data.corpora.enwik8_text8 import Enwik8, Text8
from txl_tf.data.corpora.one_billion_word import OneBillionWord
from txl_tf.data.corpora.wikitext_penn_treebank import PennTreebank, WikiText2, WikiText103

PUBLISHED_CORPORA: tuple[type[Corpus], ...] = (
    Enwik8,
    Text8,
    WikiText2,
    WikiText103,
    OneBillionWord,
    PennTreebank,
)
