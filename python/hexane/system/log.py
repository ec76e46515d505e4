"""The logger "hexane": what a server wants to know of models that run. It says nothing unless its user asks.

logging.basicConfig(level=logging.INFO)
"""

import logging

LOG = logging.getLogger("hexane")
LOG.addHandler(logging.NullHandler())
