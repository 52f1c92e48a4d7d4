"""`python -m pipeline SCRIPT ARGUMENTS...`, as `lib.sh` calls it."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
