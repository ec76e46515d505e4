"""The command `hexane`. Its modules load rich and the ONNX importer only where they are used: `--help` has to be
quick."""
