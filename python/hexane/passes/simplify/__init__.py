"""Makes a graph smaller without new kernels: cancels inverse ops, folds constants."""
