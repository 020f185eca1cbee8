"""Streams: what runs inside a task, and a runner for whole programs in one process.

Batches flow through chains of operators (:mod:`operator`, :mod:`operators`, :mod:`windowing`);
tasks (:mod:`task`) connect chains by channels; :mod:`local_job` runs all tasks of a program in one
thread.  Needs no Ray.
"""
