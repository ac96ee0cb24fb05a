"""Image credential provider plugins: programs of the node that are asked for registry credentials.

Imported only by a node that has some.
"""
