"""The records of the ops, one file for each family."""
