"""Formats for values as CSV and JSON, in files and messages (PyFlink's ``datastream.formats``)."""
