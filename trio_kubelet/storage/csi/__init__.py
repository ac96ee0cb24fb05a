"""Volumes of CSI drivers: calls to the driver on this node, and the files the kubelet keeps beside them."""
