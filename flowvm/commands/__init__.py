"""The `flowvm` command: the REPL, and the jobs that need no script of one's own."""
