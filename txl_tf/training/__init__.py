"""Training loop, optimizers, checkpoints and ledger."""
