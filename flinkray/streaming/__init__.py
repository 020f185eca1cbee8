"""Streams: everything that runs inside a task, and a runner for whole programs in one process.

Batches flow through chains of operators (:mod:`operators`, :mod:`columnar`, :mod:`windowing`).
Channels (:mod:`channels`, :mod:`network`) connect the tasks (:mod:`task`) that run the chains.
:mod:`local` runs all tasks of a program in one thread, without Ray.
"""
