"""Kubernetes objects (msgspec), YAML as Go reads it, quantities, defaults, validation, UID text."""
