"""The shared parts of the reader and the writer of Core AI assets."""
