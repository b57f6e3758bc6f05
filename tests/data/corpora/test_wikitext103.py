from txl_tf.data.corpora.wikitext2 import WikiText2
from txl_tf.data.corpora.wikitext103 import WikiText103


def test_tokens_are_words_and_lines():
    """The number of lines is known from another source than the numbers of tokens and words."""
    lines = {
        WikiText103: {"train": 1_801_350, "valid": 3_760, "test": 4_358},
        WikiText2: {"train": 36_718, "valid": 3_760, "test": 4_358},
    }
    for corpus_class, expected in lines.items():
        for counts in corpus_class().expected_counts:
            assert counts.tokens - counts.words == expected[counts.split]


def test_the_vocabularies_are_of_what_the_official_code_counts():
    options = WikiText103().tokenizer_options
    assert options.counted_splits == ("train",)
    assert WikiText2().tokenizer_options.counted_splits == ("train", "valid", "test")
    assert options.special_tokens == ("<eos>",) and options.add_eos and not options.lower_case
    assert WikiText103().vocabulary_sizes == (267_735,)
    assert WikiText2().vocabulary_sizes == (33_278,)
