"""Inputs from files: converts arrays, images and sounds for a port of a network, from one file or a folder. The one
reader of --input, --calibration and `hx.quantize_model`."""

from hexane.feeds.folder import Feeds, check_feeds
from hexane.feeds.ports import InputPort, Port, port_of
from hexane.feeds.preprocess import Preprocess

__all__ = ["Feeds", "InputPort", "Port", "Preprocess", "check_feeds", "port_of"]
