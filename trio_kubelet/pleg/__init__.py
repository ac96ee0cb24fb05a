"""Cache, looks, relist, events."""
