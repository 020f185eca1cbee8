"""Run the team of docs/tutorial.md on Ray: python examples/team_on_ray.py"""

from __future__ import annotations

import asyncio

import ray
from team import ADDRESS, LeaderGateway, LeaderId, start_team

from flinkray.rpc import RayRpcService


async def main() -> None:
    leader_id = LeaderId.generate()
    service = await RayRpcService.open("team")
    try:
        await start_team(service, leader_id, workers=2)
        leader = await service.connect(ADDRESS, LeaderGateway, leader_id)
        while len(await leader.team()) < 2:  # noqa: ASYNC110 - they register when they can
            await asyncio.sleep(0.01)
        squares = await asyncio.gather(*(leader.square(number) for number in range(10)))
        print(f"{', '.join(await leader.team())} say: {squares}")
    finally:
        await service.close()


if __name__ == "__main__":
    ray.init(include_dashboard=False)
    asyncio.run(main())
