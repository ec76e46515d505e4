"""TFLite (LiteRT) models: `.tflite` files."""
