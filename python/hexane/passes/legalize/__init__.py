"""Rewrites ops without a kernel as ops that have one."""
