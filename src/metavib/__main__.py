"""`python -m metavib`."""

from metavib.cli import main

main()
