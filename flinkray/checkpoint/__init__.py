"""Stored checkpoints: their locations and contents, and how they are written and read.

:mod:`flinkray.scheduler.checkpoints` decides what goes into a checkpoint while it is taken.
"""
