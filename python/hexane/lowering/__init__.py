"""One op as layers of the engine, or as ops of MIL, with constants that fp16 holds. Rules and passes both ask."""
