"""The command `hexane`, which loads rich and the ONNX importer only when needed: `--help` must be
fast."""
