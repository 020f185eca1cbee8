"""Sources: the interface, and the sources that come with the package."""

__all__ = [
    "collection",
    "coordinator",
    "file_input",
    "files",
    "generated",
    "input_format",
    "master_hook",
    "ray_dataset",
    "result_files",
    "source",
    "source_progress",
    "spark",
    "spark_stream",
]
