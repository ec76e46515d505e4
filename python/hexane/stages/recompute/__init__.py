"""Computes values a second time instead of keeping them."""
