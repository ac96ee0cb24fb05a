"""The Kubernetes API types (core/v1 and the few other groups a node agent speaks).

The types themselves are generated; this module is the name to import them by.
"""

from trio_kubelet.api.v1_generated import *  # noqa: F403
