"""What a command line of the agent amounts to, on any host."""

from __future__ import annotations

from trio_kubelet.config.flag_table import kubelet_flags
from trio_kubelet.config.load import Settings, load
from trio_kubelet.config.pflag import parse_command_line


def settings(*args: str) -> Settings:
    return load(parse_command_line(args, kubelet_flags()), check_host=False)
