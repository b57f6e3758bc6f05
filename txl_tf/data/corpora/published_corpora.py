"""The published corpora there are."""

from txl_tf.data.corpora.corpus import Corpus
from txl_tf.data.corpora.enwik8 import Enwik8
from txl_tf.data.corpora.one_billion_word import OneBillionWord
from txl_tf.data.corpora.penn_treebank import PennTreebank
from txl_tf.data.corpora.text8 import Text8
from txl_tf.data.corpora.wikitext2 import WikiText2
from txl_tf.data.corpora.wikitext103 import WikiText103

PUBLISHED_CORPORA: tuple[type[Corpus], ...] = (
    Enwik8,
    Text8,
    WikiText2,
    WikiText103,
    OneBillionWord,
    PennTreebank,
)
