"""Bytes between two processes: frames, envelopes, transports."""
