"""Writes Core AI assets: the bytecode, byte by byte, and the folder in which it lies."""
