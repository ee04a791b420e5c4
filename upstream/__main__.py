"""`python -m upstream` is the `upstream` command."""

from upstream.cli import main

if __name__ == "__main__":
    main()
