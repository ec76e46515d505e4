"""Fusion passes, named as in the engine's compiler."""
