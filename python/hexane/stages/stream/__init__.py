"""Programs that compute a few rows at a time, in loops with ring buffers, or in stages through slow memory."""
