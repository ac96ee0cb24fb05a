"""The command `trio-kubelet`, also as `python -m trio_kubelet`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line and returns the exit code.

    While modules are loaded, Ctrl-C ends the process as it ends others: Python would show where it was, or
    lose it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trio_kubelet.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
