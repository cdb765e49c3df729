"""``python -m warmroute.frontend`` is ``warmroute serve`` and takes its flags."""

import sys

from warmroute import _native


def main() -> int:
    return _native.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
