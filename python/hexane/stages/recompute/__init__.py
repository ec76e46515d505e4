"""Computes values a second time instead of keeping them in memory (rematerialisation)."""
