"""Finds a program for a given amount of memory: whole tensors, rows, column tiles, stages; and packed weights for
flash."""
