"""The models: Transformer-XL and what it remembers."""
