"""Embedding and softmax of a whole model with clusters, projections and own tables."""

import pytest
from keras import ops

from tests import reference_variants
from tests.models.variants import ADAPTIVE, B, T, made, score, token_ids
from tests.reference import max_difference

VOCABULARIES = {
    "one softmax": {},
    "narrow": {"embedding_dim": 4},
    "wide": {"embedding_dim": 10},
    "own table": {"tie_weights": False},
    "narrow own table": {"tie_weights": False, "embedding_dim": 4},
    "clusters of one width": {"vocabulary_size": 40, "cutoffs": (5, 17)},
    "narrow clusters of one width": {
        "vocabulary_size": 40,
        "cutoffs": (5, 17),
        "embedding_dim": 4,
    },
    "clusters": ADAPTIVE,
    "own clusters": {**ADAPTIVE, "tie_weights": False},
    "shared projections": {**ADAPTIVE, "share_tail_projections": True},
    "own clusters, shared projections": {
        **ADAPTIVE,
        "tie_weights": False,
        "share_tail_projections": True,
    },
    "a cluster as wide as the model": {**ADAPTIVE, "embedding_dim": 6, "project_same_dim": False},
    "the same, projected": {**ADAPTIVE, "embedding_dim": 6},
}


@pytest.fixture(params=list(VOCABULARIES))
def model(request):
    return made(**VOCABULARIES[request.param])


def read(model, length=3 * T + 1):
    """Tokens that come from all clusters."""
    tokens = token_ids(length, seed=3, vocabulary_size=model.config.vocabulary_size)
    ends = (*model.config.cutoffs, model.config.vocabulary_size)
    tokens[0, -len(ends) :] = [end - 1 for end in ends]
    return tokens


def test_scores_match_the_oracle(model):
    weights, tokens = reference_variants.model_weights(model), read(model)
    memory = model.initial_memory(B)
    states = [ops.convert_to_numpy(state) for state in memory.states]
    nll, following = score(model, tokens, memory)
    expected, _, states, _ = reference_variants.language_model(
        weights, model.config, tokens[:, :-1], tokens[:, 1:], states, [0] * B
    )
    assert max_difference(nll, expected) <= 1e-5
    for state, expected_state in zip(following.states, states, strict=True):
        assert max_difference(state, expected_state) <= 1e-5
