"""The layers of Transformer-XL, for Keras 3."""
