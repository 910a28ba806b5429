"""Tables, by device type, of functions that make lanes and exchanges of a device other than the
CPU.

`flowvm.loading.providers` fills it at each import, so this module contains nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

makers: dict[str, Callable[..., Any]] = {}  # of lanes: name, for messages or not, device
# Makers of exchanges among a group's ranks on devices that MPI does not reach.  Arguments: the
# world, the device, the group's size, this rank's number in it, a function that sends bytes from
# the first rank to all.
wires: dict[str, Callable[..., object]] = {}
