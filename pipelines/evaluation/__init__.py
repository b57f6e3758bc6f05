"""Parts of `txl evaluate`: user texts, documents, and the watch for new checkpoints."""
