"""Event time and processing time."""
