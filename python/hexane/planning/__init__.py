"""Finds a program for a given amount of memory: with whole tensors, row by row, in column stripes, or in stages. Packs
weights for flash."""
