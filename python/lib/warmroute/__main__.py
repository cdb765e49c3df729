"""The command ``warmroute``, which is ``python -m warmroute`` too."""

import sys

from warmroute import _native


def main() -> int:
    return _native.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
