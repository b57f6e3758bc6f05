"""Parts of `txl evaluate`: user texts, documents, and the watch on new checkpoints."""
