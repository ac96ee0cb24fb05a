"""Where on the machine containers are given what is handed out piece by piece: hints, their merging, the
CPUs (CPU and topology manager).
"""
