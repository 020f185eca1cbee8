"""Converts configuration options to the framework's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from flinkray.core import job_options, options
from flinkray.core.config import ReadableConfig
from flinkray.core.private_files import permit
from flinkray.rpc import HeartbeatSettings, RegistrationSettings, RpcService
from flinkray.rpc.service import TransportChoice
from flinkray.scheduler.elastic.scaling import ScalingSettings
from flinkray.scheduler.graph.checkpoint_configuration import checkpoints_of
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    JobGraph,
    NoRestart,
    ParallelismBounds,
    RestartStrategy,
    SchedulerMode,
)
from flinkray.scheduler.reports.job_info import JobSettings


def apply_rpc_settings(rpc_service: RpcService, configuration: ReadableConfig) -> None:
    """Apply the configuration's options for RPC, the placement of processes, and file permissions.
    An RPC option that is not set keeps the service's default. The permissions say who may read what
    this process stores. Call this before any connection is opened.
    """
    permit(configuration.get(options.STORAGE_PERMISSIONS))
    if configuration.is_set(options.RPC_ASK_TIMEOUT):
        rpc_service.ask_timeout = configuration.get(options.RPC_ASK_TIMEOUT)
    if configuration.is_set(options.RPC_FRAME_SIZE):
        rpc_service.max_frame_size = configuration.get(options.RPC_FRAME_SIZE)
    if configuration.is_set(options.RPC_MAX_PENDING_CALLS):
        rpc_service.max_pending_calls = configuration.get(options.RPC_MAX_PENDING_CALLS)
    if configuration.is_set(options.RPC_MAX_PENDING_BYTES):
        rpc_service.max_pending_bytes = configuration.get(options.RPC_MAX_PENDING_BYTES)
    idle_timeout = configuration.get(options.RPC_CONNECTION_IDLE_TIMEOUT)
    rpc_service.connection_idle_timeout = idle_timeout
    if configuration.is_set(options.RPC_METRICS_EXPORT_INTERVAL):
        rpc_service.metrics_export_interval = configuration.get(options.RPC_METRICS_EXPORT_INTERVAL)
    if configuration.is_set(options.RPC_TRANSPORT):
        transport: str = configuration.get(options.RPC_TRANSPORT)
        rpc_service.transport = cast("TransportChoice", transport)
    rpc_service.avoids_head_node = configuration.get(options.AVOID_HEAD_NODE)


def registration_settings(configuration: ReadableConfig) -> RegistrationSettings:
    """Return the settings from ``cluster.registration.*``."""
    return RegistrationSettings(
        initial_timeout=configuration.get(options.REGISTRATION_INITIAL_TIMEOUT),
        max_timeout=configuration.get(options.REGISTRATION_MAX_TIMEOUT),
        error_delay=configuration.get(options.REGISTRATION_ERROR_DELAY),
        refused_delay=configuration.get(options.REGISTRATION_REFUSED_DELAY),
    )


def default_restart_strategy(configuration: ReadableConfig) -> RestartStrategy:
    """Return the strategy from ``restart-strategy.*``.
    If unset, the default depends on ``execution.checkpointing.interval``.
    """
    kind = configuration.get(job_options.RESTART_STRATEGY)
    if kind is None:
        has_checkpoints = configuration.get(job_options.CHECKPOINTING_INTERVAL) > 0
        kind = "exponential-delay" if has_checkpoints else "none"
    if kind == "fixed-delay":
        return FixedDelayRestart(
            configuration.get(job_options.RESTART_FIXED_DELAY_ATTEMPTS),
            configuration.get(job_options.RESTART_FIXED_DELAY_DELAY),
        )
    if kind == "failure-rate":
        return FailureRateRestart(
            configuration.get(job_options.RESTART_FAILURE_RATE_MAX_FAILURES),
            configuration.get(job_options.RESTART_FAILURE_RATE_INTERVAL),
            configuration.get(job_options.RESTART_FAILURE_RATE_DELAY),
        )
    if kind == "exponential-delay":
        attempts = configuration.get(job_options.RESTART_EXPONENTIAL_ATTEMPTS)
        return ExponentialDelayRestart(
            initial_backoff=configuration.get(job_options.RESTART_EXPONENTIAL_INITIAL_BACKOFF),
            max_backoff=configuration.get(job_options.RESTART_EXPONENTIAL_MAX_BACKOFF),
            backoff_multiplier=configuration.get(job_options.RESTART_EXPONENTIAL_MULTIPLIER),
            reset_backoff_threshold=configuration.get(
                job_options.RESTART_EXPONENTIAL_RESET_THRESHOLD
            ),
            jitter_factor=configuration.get(job_options.RESTART_EXPONENTIAL_JITTER),
            attempts=None if attempts == job_options.ENDLESS else attempts,
        )
    return NoRestart()


def with_checkpoint_options(job_graph: JobGraph, configuration: ReadableConfig) -> JobGraph:
    """Return the graph with complete checkpoint settings: the cluster's options, overridden by the
    job's own options. A job that takes no checkpoints is returned unchanged. Checkpoints of an
    adaptive job are always aligned.
    """
    if job_graph.checkpoints is None:
        return job_graph
    options_of_job = configuration.with_values(job_graph.configuration)
    checkpoints = checkpoints_of(options_of_job, job_graph.checkpoints)
    if job_graph.scheduler_mode is SchedulerMode.ADAPTIVE:
        checkpoints = replace(checkpoints, is_unaligned=False)
    return replace(job_graph, checkpoints=checkpoints)


def job_settings(job_graph: JobGraph, configuration: ReadableConfig) -> JobSettings:
    """Return the settings with which the job runs on a cluster of this configuration.

    Raises:
        ConfigurationError: the job's settings contradict the cluster's configuration.
    """
    of_job = configuration.with_values(job_graph.configuration)
    is_elastic = job_graph.scheduler_mode is SchedulerMode.ADAPTIVE
    return JobSettings(
        job_graph.restart_strategy or default_restart_strategy(of_job),
        of_job.get(job_options.STATE_BACKEND),
        with_checkpoint_options(job_graph, configuration).checkpoints,
        is_elastic,
        tuple(
            ParallelismBounds(
                vertex.vertex_id,
                vertex.min_parallelism if is_elastic else vertex.parallelism,
                vertex.parallelism,
            )
            for vertex in job_graph.vertices
        ),
    )


def job_master_restart_strategy(configuration: ReadableConfig) -> RestartStrategy:
    """Return the strategy for restarts of dead JobMasters.
    It follows ``jobmaster.max-failovers`` and ``jobmaster.failover-validity-interval``.
    """
    max_failovers = configuration.get(options.MAX_JOB_MASTER_FAILOVERS)
    if max_failovers == 0:
        return NoRestart()
    interval = configuration.get(options.JOB_MASTER_FAILOVER_VALIDITY_INTERVAL)
    return FailureRateRestart(max_failovers, interval, delay=0.0)


def scaling_settings(configuration: ReadableConfig) -> ScalingSettings:
    """Return the settings from ``jobmanager.adaptive-scheduler.*``."""
    return ScalingSettings(
        resource_wait_timeout=configuration.get(options.ADAPTIVE_RESOURCE_WAIT_TIMEOUT),
        resource_stabilization_timeout=configuration.get(
            options.ADAPTIVE_RESOURCE_STABILIZATION_TIMEOUT
        ),
        scaling_interval_min=configuration.get(options.ADAPTIVE_SCALING_INTERVAL_MIN),
    )


def heartbeat_settings(configuration: ReadableConfig) -> HeartbeatSettings:
    """Return the settings from ``heartbeat.*``.

    Raises:
        ConfigurationError: the interval is not below the timeout.
    """
    return HeartbeatSettings(
        interval=configuration.get(options.HEARTBEAT_INTERVAL),
        timeout=configuration.get(options.HEARTBEAT_TIMEOUT),
        failed_rpc_requests_until_unreachable=configuration.get(
            options.HEARTBEAT_RPC_FAILURE_THRESHOLD
        ),
    )
