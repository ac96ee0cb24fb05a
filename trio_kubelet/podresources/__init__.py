"""The pod resources service: which devices, CPUs and memory the containers of this node were given."""
