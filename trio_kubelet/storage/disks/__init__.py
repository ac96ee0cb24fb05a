"""Volumes that need no driver: disks and directories of this node, and network filesystems."""
