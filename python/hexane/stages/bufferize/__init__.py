"""From a lowered graph to steps whose tensors have places: order, memory shared by values, views, offsets."""
