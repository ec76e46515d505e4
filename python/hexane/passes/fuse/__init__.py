"""Recognises several ops that one kernel computes."""
