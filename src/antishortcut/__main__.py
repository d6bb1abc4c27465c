"""`python -m antishortcut` is `asd`."""

from antishortcut.cli import main

main()
