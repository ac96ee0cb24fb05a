"""Errors that belong in a pod's status."""

from __future__ import annotations


class ConfigError(Exception):
    """A sandbox or container config cannot be made now; the text is shown in the pod's status."""
