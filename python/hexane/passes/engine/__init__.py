"""Passes from ops that are native on a chip to layers of its engine: lowering, fusion, legalisation."""
