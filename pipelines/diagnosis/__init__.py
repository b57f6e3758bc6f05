"""What `txl doctor` checks; every part but the probe runs without TensorFlow."""
