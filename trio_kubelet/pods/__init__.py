"""The life of pods: manager, workers, sync loop, housekeeping, mirrors; `pods/admission/` who is taken,
`pods/status/` what is told, `pods/resize/` what was granted.
"""
