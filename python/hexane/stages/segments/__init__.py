"""Which device computes which ops, and the segments that follow."""
