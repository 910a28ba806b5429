"""What programs name of `torch._C`: classes in annotations, and what has nothing to do here."""

from __future__ import annotations

from typing import Any

from flowvm.accelerator import current_accelerator
from flowvm.meta.device import Device, cpu
from flowvm.ops import Generator as Generator


class Graph:
    """In annotations alone."""


class Node:
    """In annotations alone."""


class Value:
    """In annotations alone."""


def _log_api_usage_once(event: str) -> None:
    """Taken: nothing is logged."""


def _get_tracing_state() -> Any:
    """None: nothing is traced by a tracer of C++."""
    return None


def _get_accelerator(check: bool | None = None) -> Device:
    """The device beside the CPU, or the CPU where there is none."""
    found = current_accelerator()
    return cpu if found is None else found
