"""`python -m tools.drawings [folder]`: write all drawings, into docs/pictures by default."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.drawings.graphs import plan
from tools.drawings.machine import record, threads
from tools.drawings.rooms import rooms

__all__ = ["DRAWINGS", "FOLDER", "main"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
DRAWINGS = {"threads": threads, "record": record, "plan": plan, "rooms": rooms}


def main(arguments: list[str] | None = None) -> int:
    """Write all drawings; their names on stdout."""
    parser = argparse.ArgumentParser(prog="python -m tools.drawings", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder: Path = parser.parse_args(arguments).folder
    for name, draw in DRAWINGS.items():
        path = folder / f"{name}.svg"
        path.write_text(draw().svg(), encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
