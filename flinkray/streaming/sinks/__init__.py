"""Sinks: the two-phase interface, and the sinks that come with the package."""

__all__ = [
    "collect",
    "committables",
    "committer_operator",
    "delivery_guarantee",
    "file_formats",
    "file_policies",
    "files",
    "result_files",
    "simple",
    "sink",
    "spark",
    "writer_operator",
]
