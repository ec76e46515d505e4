"""Importers: each reads a model file and returns a graph."""
