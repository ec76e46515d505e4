"""`python -m hexane` is the command `hexane`."""

from hexane.cli.main import main

main()
