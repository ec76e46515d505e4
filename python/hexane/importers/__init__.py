"""Model files into graphs."""
