"""One plan, several agents: `python run_flow.py "…"`. Everything happens in `app/frontends/cli.py`."""

import sys

from app.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], flow=True))
