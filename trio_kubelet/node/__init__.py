"""The Node object, its status and lease."""
