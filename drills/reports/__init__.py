"""The reports of a drill from its run.json and its history: `page` (HTML and Markdown), `drawing` (for Perfetto, too).

Imports `checker`.
"""
