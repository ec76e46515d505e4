"""MIL, the language that Apple's compilers take: its text, the arguments of its ops, and how ops of the catalogue are
written in it."""
