// How a job is run.

import { optional } from "./api.js";
import { howTaken } from "./checkpoints.js";
import { definitions, h, table } from "./dom.js";
import { count } from "./format.js";

export function configurationPart(base) {
  return {
    async load(ask) {
      const [config, checkpoints, bounds] = await Promise.all([
        optional(ask(`${base}/config`)),
        optional(ask(`${base}/checkpoints/config`)),
        optional(ask(`${base}/resource-requirements`)),
      ]);
      return { config: config?.["execution-config"], checkpoints, bounds };
    },
    render({ config, checkpoints, bounds }, { job, progress }) {
      if (!config || !bounds) return h("p", { class: "empty" }, "How this job was run was not kept.");
      const names = new Map(job.vertices.map((it) => [it.id, it.name]));
      return [
        h("section", { "aria-labelledby": "run" },
          h("h2", { id: "run" }, "How it is run"),
          definitions([
            ["Restarts", config["restart-strategy"]],
            ["Parallelism", count(config["job-parallelism"])],
            ["Elastic", progress?.["is-elastic"] ? "yes: it can be rescaled while it runs" : "no"],
            ...Object.entries(config["user-config"]).map(([name, value]) => [name, String(value)]),
          ])),
        h("section", { "aria-labelledby": "taken" },
          h("h2", { id: "taken" }, "Checkpoints"),
          checkpoints ? howTaken(checkpoints) : h("p", { class: "empty" }, "It takes none.")),
        h("section", { "aria-labelledby": "bounds" },
          h("h2", { id: "bounds" }, "Parallelism of the vertices"),
          table("Parallelism of the vertices", [["Vertex"], ["At least", "number"], ["At most", "number"]],
            Object.entries(bounds).map(([id, { parallelism }]) => ({
              key: id,
              cells: [names.get(id) ?? id, count(parallelism.lowerBound), count(parallelism.upperBound)],
            })))),
      ];
    },
  };
}
