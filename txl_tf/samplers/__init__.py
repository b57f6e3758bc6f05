"""How generation picks the next token."""

from txl_tf.samplers.greedy_sampler import GreedySampler
from txl_tf.samplers.random_sampler import RandomSampler
from txl_tf.samplers.top_k_sampler import TopKSampler
from txl_tf.samplers.top_p_sampler import TopPSampler

__all__ = ["GreedySampler", "RandomSampler", "TopKSampler", "TopPSampler"]
