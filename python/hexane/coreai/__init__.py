"""The parts that the reader and the writer of Core AI assets share."""
