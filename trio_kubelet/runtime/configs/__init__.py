"""CRI sandbox and container configs of a pod, made by pure functions.

What a container may do and see is decided by these messages alone, so they follow the kubelet to the
field. Everything the machine or the cluster has a say in (`NodeContext`, addresses, volumes, config maps)
comes in as a value; `builder` gathers those and is the only part that touches files.
"""
