"""The logger "hexane", with events of running models, for servers, silent unless its user asks.

logging.basicConfig(level=logging.INFO)
"""

import logging

LOG = logging.getLogger("hexane")
LOG.addHandler(logging.NullHandler())
