"""Sizes beyond which a number is a mistake, whatever the machine."""

MAX_TOKEN_IDS = 2**31 - 1
"""Token ids are int32."""
MAX_STEPS = 2**31 - 1
"""Steps are int32 where they decide dropout masks; at ten a second they last for seven years."""
MAX_STEPS_PER_LOOP = 2**20
"""The figures of all steps of a loop stay on the device until it ends."""
MAX_LAYERS = 1024
"""Every layer is a part of the program of its own, which takes seconds to compile."""
MAX_WIDTH = 2**20
"""Of hidden states, heads, embeddings and feed-forward layers, and how many heads there are."""
MAX_TOKENS = 2**24
"""Tokens of a segment or of a memory; attention keeps a number for every pair of them."""
MAX_ROWS = 2**24
"""Rows that are read side by side."""
MAX_CLUSTERS = 64
"""Clusters of the vocabulary; every cluster is a part of the program of its own."""
