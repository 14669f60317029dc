"""The reports of a drill, HTML and Markdown, from its run.json and its history: `page`, `markdown`.

Imports `checker`.
"""
