"""`python -m lab`: see `lab/cli.py`."""

from lab.cli import main

if __name__ == "__main__":
    main()
