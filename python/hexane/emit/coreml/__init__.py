"""Writes graphs as Core ML packages (`NAME.mlpackage`), for Xcode and the App Store."""
