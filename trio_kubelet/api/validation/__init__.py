"""Whether a pod is valid: the rules of Kubernetes for creating a pod, with every violation named.

The rules follow the API's own field by field, and are told in its words: both are part of what operators
and tools know. One module per part of the pod.
"""
