"""Sources: the interface, and the sources that come with the package."""

__all__ = [
    "collection",
    "coordinator",
    "enumerator_state",
    "file_input",
    "files",
    "generated",
    "input_format",
    "reader",
    "result_files",
    "source",
    "source_hold",
    "source_progress",
    "spark",
    "spark_stream",
    "splits_to_read",
]
