"""A machine that goes down waits until its pods have ended, in order: the plan (pure), logind, the task."""
