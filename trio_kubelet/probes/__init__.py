"""Decisions, schedule, exec/HTTP/TCP/gRPC."""
