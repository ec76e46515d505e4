"""Assigns ops to devices and divides the network into segments."""
