"""Where on the machine containers are given what is handed out piece by piece: hints, their merging, the
CPUs and the memory (CPU, memory and topology manager).
"""
