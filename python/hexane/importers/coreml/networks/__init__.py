"""Core ML neural networks: the format before ML programs."""
