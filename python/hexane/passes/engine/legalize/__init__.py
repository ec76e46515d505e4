"""Legalisation: layers that the chip has no room for become several that it has."""
