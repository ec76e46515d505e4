"""The stand-in is as strict as the device, also towards callers that csrc/device is not."""

import os
import subprocess
from pathlib import Path

from stand_in import BUILD, needs_stand_in


def test_what_the_device_refuses_is_refused(tmp_path: Path) -> None:
    needs_stand_in()
    environment = os.environ | {"TMP": str(tmp_path)}
    result = subprocess.run([BUILD / "strict"], capture_output=True, text=True, env=environment)
    assert (result.returncode, result.stdout) == (0, "")
