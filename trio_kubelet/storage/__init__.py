"""Volumes that outlive or are shared by pods: claims, CSI drivers, disks and network filesystems.

What has to be attached, mounted for the node, mounted for a pod, expanded and taken away again is computed by
pure functions (`steps`) from two values: what pods want (`world.Desired`) and what there is (`world.Actual`).
The shell (`manager`) carries steps out, one for a volume at a time, each volume on its own. Layout on disk is
the kubelet's, so that either agent can clean up after the other.
"""
