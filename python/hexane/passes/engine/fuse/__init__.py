"""Fusion passes. Each pass has the name that the engine's compiler gives it."""
