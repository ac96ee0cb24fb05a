"""Which images go, and their removal."""
