"""What reader and writer of Core AI assets share."""
