"""Sources: the interface, and the ones that come with the package."""

__all__ = [
    "collection",
    "coordinator",
    "enumerator_state",
    "files",
    "generated",
    "reader",
    "result_files",
    "source",
    "source_hold",
    "source_progress",
    "spark",
    "spark_stream",
]
