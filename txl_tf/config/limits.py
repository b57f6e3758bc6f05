"""Limits of sizes and counts in all configurations."""

MAX_TOKEN_IDS = 2**31 - 1
"""Token ids are int32."""
MAX_STEPS = 2**31 - 1
"""Dropout masks depend on the step as an int32."""
MAX_STEPS_PER_LOOP = 2**20
"""The figures of all steps of a loop stay on the device until it ends."""
MAX_LAYERS = 1024
"""Each layer takes seconds to compile."""
MAX_WIDTH = 2**20
"""Limit of the widths of layers, and of the number of heads."""
MAX_TOKENS = 2**24
"""Limit of segments and memories; attention computes a score for every pair of tokens."""
MAX_DISTANCE = 2**31 - 1
"""Distances are int32."""
MAX_ROWS = 2**24
"""Limit of the rows of a batch."""
MAX_CLUSTERS = 64
"""Limit of the clusters of the vocabulary, each of which is compiled separately."""
