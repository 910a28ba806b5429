"""`python -m flowvm` is the `flowvm` command."""

import sys

from flowvm.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
