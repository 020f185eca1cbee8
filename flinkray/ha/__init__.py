"""Provides leader election and retrieval, and the stores for data that must outlive a leader."""

from flinkray.ha.checkpoint_stores import (
    CheckpointIDCounter,
    CheckpointStoreFencedError,
    CompletedCheckpointPointer,
    CompletedCheckpointStore,
)
from flinkray.ha.directory import Directory, MemoryDirectory
from flinkray.ha.embedded import EmbeddedHaServices
from flinkray.ha.leader_election import (
    LeaderContender,
    LeaderElection,
    LeaderElectionError,
    LeaderRetrievalListener,
    LeaderRetrievalService,
)
from flinkray.ha.locations import absolute_location, open_directory
from flinkray.ha.services import AbstractNonHaServices, HighAvailabilityServices
from flinkray.ha.standalone import StandaloneHaServices
from flinkray.ha.stores import (
    JobGraphStore,
    JobResultStore,
    JobStoreFencedError,
    JobStoreStateError,
    Recovered,
    StoreError,
)

__all__ = [
    "AbstractNonHaServices",
    "CheckpointIDCounter",
    "CheckpointStoreFencedError",
    "CompletedCheckpointPointer",
    "CompletedCheckpointStore",
    "Directory",
    "EmbeddedHaServices",
    "HighAvailabilityServices",
    "JobGraphStore",
    "JobResultStore",
    "JobStoreFencedError",
    "JobStoreStateError",
    "LeaderContender",
    "LeaderElection",
    "LeaderElectionError",
    "LeaderRetrievalListener",
    "LeaderRetrievalService",
    "MemoryDirectory",
    "Recovered",
    "StandaloneHaServices",
    "StoreError",
    "absolute_location",
    "open_directory",
]
