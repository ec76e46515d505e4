"""Simplifies a graph without new kernels: cancels inverse ops, folds constants."""
