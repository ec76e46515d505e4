"""The stages behind the passes: from a graph to a program whose steps have an order and whose buffers have offsets."""
