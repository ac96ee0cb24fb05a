"""Volumes of pods: what has to be there (pure, `plan` and `payload`), and the thin part that makes it.

Directories, modes, owners and marker files are the kubelet's, so an agent can take over from the other
with pods running. Every step may be repeated: what is already there is left alone.
"""
