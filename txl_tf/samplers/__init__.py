"""How generation picks the next token."""

from txl_tf.samplers.beam_sampler import BeamSampler
from txl_tf.samplers.greedy_sampler import GreedySampler
from txl_tf.samplers.min_p_sampler import MinPSampler
from txl_tf.samplers.random_sampler import RandomSampler
from txl_tf.samplers.repetition_penalty import RepetitionPenalty
from txl_tf.samplers.top_k_sampler import TopKSampler
from txl_tf.samplers.top_p_sampler import TopPSampler

__all__ = [
    "BeamSampler",
    "GreedySampler",
    "MinPSampler",
    "RandomSampler",
    "RepetitionPenalty",
    "TopKSampler",
    "TopPSampler",
]
