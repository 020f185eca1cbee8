"""Submitting jobs: the Python client, the command line, and starting and ending clusters.

The public names are those of :mod:`flinkray` itself.
"""
