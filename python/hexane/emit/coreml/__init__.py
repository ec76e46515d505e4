"""Writes graphs as Core ML packages (`NAME.mlpackage`): what Xcode and the App Store take."""
