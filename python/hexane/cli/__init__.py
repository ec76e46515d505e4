"""The command `hexane`. Its modules load rich and the ONNX importer only when needed: `--help` must be fast."""
