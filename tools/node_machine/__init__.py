"""A machine with cgroup v2 and systemd for tests: Debian 13 on User Mode Linux, whose kernel is a process.

Only the cache is written to, and what a run needs lies in a directory of that run. Everything is fetched from
the archive and the package index that this machine already uses.
"""
