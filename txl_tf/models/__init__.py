"""Models: Transformer-XL, its baselines and their memory."""
