"""Assigns ops to devices, and forms the segments."""
