"""The reports of a drill from its run.json and its history: `page` (HTML), `markdown`, `trace` (for Perfetto).

Imports `checker`.
"""
