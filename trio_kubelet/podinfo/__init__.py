"""What follows from a pod's spec and its node: class of service, amounts, paths, cgroup names, downward
values; events about pods.
"""
