"""The embedded log: topics as folders of Arrow files, its producers, and chains of files.

Imports `logs` itself.
"""
