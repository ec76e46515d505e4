"""The layers of an engine segment: their order, memory, weights and arithmetic."""
