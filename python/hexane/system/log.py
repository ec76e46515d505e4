"""The logger "hexane": events of running models, for servers. It says nothing unless its user asks.

logging.basicConfig(level=logging.INFO)
"""

import logging

LOG = logging.getLogger("hexane")
LOG.addHandler(logging.NullHandler())
