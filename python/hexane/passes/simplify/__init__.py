"""Makes a graph smaller without another kernel: what undoes itself, what is constant."""
