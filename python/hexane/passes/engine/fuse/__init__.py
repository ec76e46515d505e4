"""Fusion: each pass under the name that the engine's compiler has for it."""
