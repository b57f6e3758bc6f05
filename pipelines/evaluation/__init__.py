"""Parts of `txl evaluate`: own text, documents, checkpoints that are still to come."""
