"""Language models on text: generation, scores and sessions in a few lines."""
