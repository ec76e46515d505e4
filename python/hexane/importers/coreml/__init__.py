"""Core ML models: packages (`.mlpackage`), compiled models (`.mlmodelc`) and their MIL programs."""
