"""The kubelet's flags, configuration file and feature gates."""
