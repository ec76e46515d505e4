"""Legalisation: splits or rewrites layers that exceed the chip's limits."""
