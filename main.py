"""One agent, one task: `python main.py "write a haiku to haiku.txt"`. Everything happens in `app/frontends/cli.py`."""

import sys

from app.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
