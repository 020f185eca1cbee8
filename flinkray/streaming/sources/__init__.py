"""Sources: the interface, and the ones that come with the package."""

__all__ = [
    "collection",
    "files",
    "generated",
    "hosted_source",
    "reader",
    "result_files",
    "source",
]
