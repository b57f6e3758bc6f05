"""Adaptive embedding and softmax in NumPy: the oracle of their tests.

Each function computes one token and one cluster at a time, in float64, by the formulas of Baevski
and Auli (2019) and Grave et al. (2017). It chooses projections as the official TensorFlow code
does. The module shares no code with the package.

The weights of a cluster are a table (ids, width), and a projection (width, D) or `None`. Settings
are a dict of the constructor arguments that both layers have.
"""

import math

import numpy as np

SETTINGS = {
    "vocabulary_size": 40,
    "hidden_dim": 8,
    "embedding_dim": 8,
    "cutoffs": (10, 20, 30),
    "division_factor": 2,
    "project_same_dim": True,
}
SIZES = [  # division_factor, embedding_dim, cutoffs, for 40 ids and a hidden width of 8
    (1, 8, ()),
    (1, 4, ()),
    (2, 8, ()),
    (1, 8, (3,)),
    (1, 16, (10, 30)),
    (1, 4, (1, 10, 39)),
    (2, 8, (3,)),
    (2, 16, (10, 30)),
    (2, 8, (1, 10, 39)),
    (4, 8, (3,)),
    (4, 32, (10, 11)),
    (4, 64, (1, 10, 39)),
]


def cluster_bounds(settings):
    """Returns the first id and the end of the ids of every cluster."""
    firsts = [0, *settings["cutoffs"]]
    return [
        (first, end)
        for first, end in zip(firsts, [*firsts[1:], settings["vocabulary_size"]], strict=True)
    ]


def cluster_of(token_id, settings):
    """Returns the number of the cluster with a token, and the row of the token in its table."""
    for cluster, (first, end) in enumerate(cluster_bounds(settings)):
        if first <= token_id < end:
            return cluster, token_id - first
    raise AssertionError(f"{token_id} is in no cluster")


def cluster_tables(tables, settings):
    """Returns one table per cluster, cut from the shared table if `division_factor` is 1."""
    if settings["division_factor"] > 1:
        return tables
    return [tables[0][first:end] for first, end in cluster_bounds(settings)]


def embedding(token_id, tables, projections, settings):
    """Returns the embedding of one token: (D,)."""
    cluster, place = cluster_of(token_id, settings)
    row = np.asarray(cluster_tables(tables, settings)[cluster][place], "float64")
    projection = projections[0 if settings["division_factor"] == 1 else cluster]
    return (row if projection is None else row @ projection) * math.sqrt(settings["hidden_dim"])


def output_projection(cluster, settings, share_tail_projections, own, embeddings):
    """Returns the projection of one cluster of the softmax, or `None`."""
    division_factor, width = settings["division_factor"], settings["embedding_dim"]
    if not settings["cutoffs"] or (share_tail_projections and cluster > 0):
        return embeddings[0 if division_factor == 1 else cluster]
    for _ in range(cluster):
        width //= division_factor
    is_needless = division_factor == 1 or not settings["project_same_dim"]
    return None if width == settings["hidden_dim"] and is_needless else own[cluster]


def logits_of(hidden, table, bias, projection):
    """Computes the logits of all ids of a table."""
    features = hidden if projection is None else projection @ hidden
    return np.asarray(table, "float64") @ features + bias


def log_softmax(logits):
    """Computes the log-probabilities of a vector of logits."""
    shifted = logits - np.max(logits)
    return shifted - math.log(np.exp(shifted).sum())


def log_probabilities(hidden, tables, biases, projections, cluster_weight, cluster_bias, settings):
    """Computes the log-probabilities of the whole vocabulary after one hidden state (D,)."""
    hidden, tables = np.asarray(hidden, "float64"), cluster_tables(tables, settings)
    head = [logits_of(hidden, tables[0], biases[0], projections[0])]
    if settings["cutoffs"]:
        head.append(logits_of(hidden, cluster_weight, cluster_bias, projections[0]))
    head = log_softmax(np.concatenate(head))
    head_size = len(tables[0])
    result = [head[:head_size]]
    for tail in range(1, len(tables)):
        within = log_softmax(logits_of(hidden, tables[tail], biases[tail], projections[tail]))
        result.append(head[head_size + tail - 1] + within)
    return np.concatenate(result)
