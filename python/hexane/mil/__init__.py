"""MIL, the language of Apple's compilers: its text, the arguments of its ops, and the forms of catalogue ops in it."""
