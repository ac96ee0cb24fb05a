"""`python -m trio_kubelet` is the command `trio-kubelet`."""

from __future__ import annotations

import sys

from trio_kubelet.cli import main

if __name__ == "__main__":
    sys.exit(main())
