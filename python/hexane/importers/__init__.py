"""Importers: they read models, as graphs, and weights."""
