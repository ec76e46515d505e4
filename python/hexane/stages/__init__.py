"""The stages after the passes: from a graph to a program with ordered steps and buffer offsets."""
