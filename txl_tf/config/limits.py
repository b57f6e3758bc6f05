"""Largest sizes and counts that configurations accept."""

MAX_TOKEN_IDS = 2**31 - 1
"""Token ids are int32."""
MAX_STEPS = 2**31 - 1
"""The step is an int32 where it determines the dropout masks."""
MAX_STEPS_PER_LOOP = 2**20
"""The device keeps the figures of every step until the loop ends."""
MAX_LAYERS = 1024
"""Each layer takes seconds to compile."""
MAX_WIDTH = 2**20
"""Largest width of a layer, and largest number of heads."""
MAX_TOKENS = 2**24
"""Largest length of a segment or a memory. Attention computes a score for each pair of tokens."""
MAX_DISTANCE = 2**31 - 1
"""Distances are int32."""
MAX_ROWS = 2**24
"""Largest number of rows in a batch."""
MAX_CLUSTERS = 64
"""Largest number of clusters of a vocabulary. Each cluster is compiled separately."""
