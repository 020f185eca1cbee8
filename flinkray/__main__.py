"""``python -m flinkray``: the command line."""

from flinkray.client.cli import main

if __name__ == "__main__":
    main()
