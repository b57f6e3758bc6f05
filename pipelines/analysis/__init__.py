"""The analyses of `txl analyze`, one module each."""
