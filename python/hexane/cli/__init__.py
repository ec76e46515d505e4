"""The command `hexane`. The command's modules load rich and the ONNX importer only when needed: `--help` must be
fast."""
