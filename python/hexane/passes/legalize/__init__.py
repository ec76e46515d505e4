"""Rewrites ops without a kernel into ops that have one."""
