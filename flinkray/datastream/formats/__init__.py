"""CSV and JSON, in files and messages (PyFlink's ``datastream.formats``)."""
