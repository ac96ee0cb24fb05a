"""What is left of memory, disks and PIDs, and who goes when it runs short: one observation in, decisions
out; the task that carries them out.
"""
