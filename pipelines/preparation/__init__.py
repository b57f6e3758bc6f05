"""What `txl prepare` reads, and how it makes tokens of it."""
