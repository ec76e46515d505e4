"""Lowers single ops to layers of the engine or to ops of MIL, with constants that fp16 holds. Rules and passes use
it."""
