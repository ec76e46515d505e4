"""Writes what no kernel takes as what kernels take."""
