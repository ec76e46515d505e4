"""The command `hexane`. It loads rich and the ONNX importer only when needed, because `--help` must be fast."""
