"""Ray's command line, whose nodes start on a busy machine too."""

from __future__ import annotations

from ray.scripts.scripts import main

from flinkray.client.ray_runtime import ports_for_agents

if __name__ == "__main__":
    with ports_for_agents():
        main()
