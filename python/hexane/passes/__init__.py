"""The passes: each a function of its own, from a graph to a graph of the same meaning."""
