"""Sinks: the two-phase interface, and the sinks that come with the package."""

__all__ = [
    "file_formats",
    "file_policies",
    "files",
    "output_format",
    "ray_dataset",
    "result_files",
    "simple",
    "sink",
    "sink_operators",
    "spark",
]
