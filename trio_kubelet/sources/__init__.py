"""File, HTTP, API server, the merge."""
