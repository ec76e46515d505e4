"""Writes Core AI assets: the bytecode and its folder."""
