"""From a lowered graph to steps with placed tensors: execution order, shared memory, views, offsets."""
