"""Checkpoints at rest: where state lies, what is in a checkpoint, and how it is stored and read.

What a checkpoint is made of while it is taken is decided in :mod:`flinkray.scheduler.checkpoints`.
"""
