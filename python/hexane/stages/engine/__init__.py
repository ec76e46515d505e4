"""The layers of a segment of the engine: their order, their memory, their weights and their arithmetic."""
