"""The machine as it is read: capacity, system, cgroup files."""
