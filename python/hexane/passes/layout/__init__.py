"""Chooses the order of axes in memory."""
