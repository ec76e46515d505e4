"""Programs that compute a few rows at a time, in loops with circular buffers, or in stages through slow memory."""
