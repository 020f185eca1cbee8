"""Writes the texts that explain to users why slots are missing."""

from __future__ import annotations

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.cluster_resources import ClusterResources, slots_that_fit
from flinkray.scheduler.resources.resource_tracker import ResourceTracker, owner_of
from flinkray.scheduler.resources.slot_index import Service, service_of
from flinkray.scheduler.resources.worker_groups import (
    BundleState,
    GroupKind,
    GroupRequest,
    WorkerGroup,
)
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    ResourceShortage,
    WorkerGroupOwner,
    profile_of_slot,
)


def explain(
    tracker: ResourceTracker,
    requirements: ResourceRequirements,
    now: float,
    cluster: ClusterResources,
) -> tuple[ResourceShortage, ...]:
    """Explain to users why slots of a job are missing, one entry per profile; empty if none is
    missing."""
    return tuple(
        _explain_one(tracker, requirements, missing, now, cluster)
        for missing in tracker.missing(requirements)
    )


def _explain_one(
    tracker: ResourceTracker,
    requirements: ResourceRequirements,
    missing: ResourceRequirement,
    now: float,
    cluster: ClusterResources,
) -> ResourceShortage:
    wanted = (missing.profile, missing.constraint)
    required = sum(
        r.count for r in requirements.requirements if (r.profile, r.constraint) == wanted
    )
    owner = owner_of(requirements.job_id, missing)
    each = "" if missing.profile.is_zero() else f" ({missing.profile} each)"
    sentences = [
        f"{missing.count} of {required} {'slot' if required == 1 else 'slots'}{each} "
        f"{'is' if missing.count == 1 else 'are'} missing."
    ]
    if cluster.outage is not None:
        sentences.append(f"{cluster.outage}, and nothing can be started before it does.")
    elif cluster.nodes:
        sentences.append(
            f"The cluster has {cluster.total} in all and {cluster.available} free; "
            f"its largest node has {cluster.largest_node}."
        )
    else:
        sentences.append("The cluster has no nodes yet.")
    impossible = None
    if cluster.outage is None:
        impossible = _why_impossible(tracker, owner, missing.profile, cluster)
    if impossible is not None and not tracker.fail_unfulfillable:
        impossible = None
        sentences.append("The cluster is starting up, larger workers may be on their way.")
    kind = tracker.kind_of(requirements.job_id, missing)
    exhausted = impossible is None and (requirements.job_id, kind) in tracker.exhausted
    if impossible is not None:
        sentences.append(impossible)
    elif exhausted:
        sentences.append(
            f"No more than {tracker.settings.max_slots} slots may be started in all "
            "(slotmanager.number-of-slots.max): raise the limit, or wait for other jobs to end."
        )
    else:
        sentences += _what_is_awaited(tracker, kind, missing.profile, now, cluster)
    return ResourceShortage(
        missing=missing.count,
        profile=missing.profile,
        reason=" ".join(sentences),
        unfulfillable=impossible is not None,
        cluster_total=cluster.total,
        cluster_available=cluster.available,
        largest_node=cluster.largest_node,
        exhausted=exhausted,
        awaits_room=any(r.waits_for_room(now) for r in _requests_for(tracker, kind)),
        constraint=missing.constraint,
    )


def _why_impossible(
    tracker: ResourceTracker,
    owner: WorkerGroupOwner | None,
    profile: ResourceProfile,
    cluster: ClusterResources,
) -> str | None:
    """Return a sentence saying that neither existing nor future nodes can provide the slots. None
    if they may."""
    if owner is None:
        for total in tracker.index.shared_totals():
            slot = profile_of_slot(total, tracker.settings.slots_of(total))
            if service_of(profile, total, slot) is not Service.NOT:
                return None
        profile = tracker.settings.shared_worker_for(profile)
    if cluster.autoscaling or not cluster.nodes:
        return None
    if not slots_that_fit(profile, cluster.nodes):
        for name, amount in sorted(profile.extended.items()):
            most = max(node.extended.get(name, 0.0) for node in cluster.nodes)
            if amount > most:
                there = f"more than {most:g} {name}" if most else f"any {name}"
                return f"No node has {there}: ask for less per slot, or add a node."
        what = f"a worker of {profile}" if owner is None else "such a slot"
        return f"No node can ever hold {what}: ask for less per slot, or add a larger node."
    if owner is None:
        return None
    number = len(tracker.bundles_wanted[owner])
    whole = profile.times(number)
    most = slots_that_fit(profile, cluster.nodes)
    if not whole.fits_into(cluster.total) or number > most:
        return (
            f"The job needs its {number} slots at the same time, {whole} in all, and all "
            f"nodes together can never hold more than {most:g} of them: lower the parallelism, ask "
            "for less per slot, or add nodes."
        )
    return None


def _what_is_awaited(
    tracker: ResourceTracker,
    kind: GroupKind,
    profile: ResourceProfile,
    now: float,
    cluster: ClusterResources,
) -> list[str]:
    sentences: list[str] = []
    for name, amount in sorted(profile.extended.items()):
        if amount > cluster.available.extended.get(name, 0.0):
            sentences.append(f"No node has {amount:g} {name} free.")
    if isinstance(kind, ResourceProfile):
        sentences += _about_shared_groups(tracker, kind, cluster)
    else:
        group = tracker.groups.of_owner(kind)
        sentences += [] if group is None else _about_group(group, cluster)
    requests = _requests_for(tracker, kind)
    sentences += [_about_request(request, now, cluster) for request in requests[:_SHOWN]]
    if len(requests) > _SHOWN:
        sentences.append(f"So are {len(requests) - _SHOWN} others.")
    if tracker.start_rate.delay(now):
        sentences.append("Too many starts of workers have failed: the next one is being delayed.")
    failures = tracker.groups.failures.get(kind)
    if failures is not None:
        attempts = "attempt" if failures.count == 1 else "attempts"
        sentences.append(
            f"{failures.count} {attempts} to create a worker group failed, the last one with: "
            f"{failures.cause.rstrip('.')}."
        )
    if cluster.autoscaling:
        sentences.append("The autoscaler may add nodes.")
    return sentences


def _requests_for(tracker: ResourceTracker, kind: GroupKind) -> list[GroupRequest]:
    if isinstance(kind, ResourceProfile):
        return tracker.groups.shared_requests_of(kind)
    request = tracker.groups.request_of_owner(kind)
    return [] if request is None else [request]


_SHOWN = 3
"""Largest number of groups and requests that are described individually."""

_WAITED = (1, 5, 15, 60, 300, 900, 3600)
"""Steps of waiting times in texts, in seconds, so that texts do not change at every call."""


def _about_request(request: GroupRequest, now: float, cluster: ClusterResources) -> str:
    waited = max((step for step in _WAITED if now - request.since >= step), default=0)
    count = len(request.profiles)
    text = f"A placement group of {count} {'bundle' if count == 1 else 'bundles'} is asked for"
    text += f" and has been waiting for {waited} s or more" if waited else ""
    answer = cluster.pending_groups.get(request.number)
    return f"{text}; Ray says: {answer.rstrip('.')}." if answer else f"{text}."


def _about_shared_groups(
    tracker: ResourceTracker, worker: ResourceProfile, cluster: ClusterResources
) -> list[str]:
    groups = [g for g in tracker.groups.shared_starting.values() if g.kind == worker]
    sentences = [sentence for group in groups[:_SHOWN] for sentence in _about_group(group, cluster)]
    others = sum(group.number_starting for group in groups[_SHOWN:])
    return [*sentences, f"{others} other TaskExecutors are starting."] if others else sentences


def _about_group(group: WorkerGroup, cluster: ClusterResources) -> list[str]:
    sentences = []
    starting = group.number_starting
    if starting:
        sentences.append(
            f"{starting} of {len(group.bundles)} TaskExecutors of {group.text} are starting."
        )
    for _, bundle in sorted(group.bundles.items()):
        if bundle.state is BundleState.STARTING and bundle.last_cause is not None:
            sentences.append(
                f"The one in bundle {bundle.index} was lost or did not start before "
                f"({bundle.last_cause.rstrip('.')})."
            )
    if group.group_id in cluster.groups:
        sentences.append(f"Ray on {group.text}: {cluster.groups[group.group_id].rstrip('.')}.")
    return sentences
