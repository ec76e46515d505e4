"""Inputs from files: arrays, images and sounds become what a port of a network takes, one file or a folder of them. The
one reader behind --input, --calibration and `hx.quantize_model`."""

from hexane.feeds.folder import Feeds, check_feeds
from hexane.feeds.ports import InputPort, Port, port_of
from hexane.feeds.preprocess import Preprocess

__all__ = ["Feeds", "InputPort", "Port", "Preprocess", "check_feeds", "port_of"]
