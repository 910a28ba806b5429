"""Puts tests/ops/helpers on the path: the tests are no packages, and their helpers are shared."""

import sys
from pathlib import Path

_helpers = str(Path(__file__).parent / "helpers")
if _helpers not in sys.path:
    sys.path.insert(0, _helpers)
