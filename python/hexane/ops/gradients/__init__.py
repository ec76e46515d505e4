"""Gradient rules, named in the records of their ops (`Op.grad`), one file for each family."""
