"""General helpers: clock, log, supervisor, the rule of back-off, jitter, what metrics share, worker
threads.
"""
