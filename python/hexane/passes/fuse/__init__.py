"""Recognises groups of ops that one kernel can compute."""
