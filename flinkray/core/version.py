"""Defines the version of flinkray."""

VERSION = "0.1.0"
