"""Inputs from files: converts arrays, images and sounds for a network's input, from one file or a folder. --input,
--calibration and `hx.quantize_model` all use it."""

from hexane.feeds.folder import Feeds, check_feeds
from hexane.feeds.ports import InputPort, Port, port_of
from hexane.feeds.preprocess import Preprocess

__all__ = ["Feeds", "InputPort", "Port", "Preprocess", "check_feeds", "port_of"]
