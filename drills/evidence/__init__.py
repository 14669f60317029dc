"""The evidence of a drill: files, histories, fetch intervals, measurements and verdicts.

Imports `reports`, `checker`, `environments`, `faults`, `base` and `coordinator.admin`.
"""
