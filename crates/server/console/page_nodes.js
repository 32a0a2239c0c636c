// The nodes of the cluster and how far each is behind.

import { Problem, get } from "./api.js";
import { h, put, text } from "./dom.js";
import { number } from "./format.js";
import { empty, failed, figures, heading, loading, panel, pairs, table, tag } from "./parts.js";

const ROLES = { leader: "accent", voter: "good", learner: "warn" };

export function show({ on }) {
  const place = h("div", { class: "stack" }, h("section", { class: "panel" }, loading()));
  const members = table("Nodes", [
    { title: "Node", cell: (node) => number(node.node_id) },
    { title: "Role", cell: (node) => h("span", { class: "tags" }, tag(node.role, ROLES[node.role]), node.isThis ? h("span", { class: "note" }, "this node") : null) },
    { title: "Address", cell: (node) => (node.address ? text(node.address, { class: "key" }) : "–") },
    { title: "Entries behind", class: "num", cell: (node) => (node.lag === null ? h("span", { class: "note" }, "the leader knows") : node.lag === 0 ? "0" : number(node.lag)) },
  ], (node) => node.node_id);
  const state = h("div");
  const settings = h("div", { class: "body" });
  const whole = [h("section", { class: "panel", "aria-label": "State" }, state), panel("Nodes", "as this node sees them, live", members.node), panel("Settings", "replicated", settings)];

  function update({ ready, message, cluster }) {
    const readiness = ready ? tag("ready", "good") : tag("not ready", "bad");
    if (!cluster) {
      put(place, h("section", { class: "panel" }, figures(["Readiness", readiness, true], ...(message ? [["Message", text(message), true]] : [])), empty("One server, in memory", "It has no cluster. Start it with --data to keep its state on disk, and with --peer-listen to add nodes.")));
      return;
    }
    put(state, figures(
      ["Readiness", readiness, true],
      ["Leader", cluster.leader_id === null ? tag("none", "bad") : `node ${cluster.leader_id}`, true],
      ["Term", number(cluster.term)],
      ["Log", number(cluster.last_log_index)],
      ["Applied", number(cluster.applied_index)],
      ["Snapshot", number(cluster.snapshot_index)],
      ["Quorum", cluster.quorum_ack_ms === null ? "–" : `${number(cluster.quorum_ack_ms)} ms ago`, true],
      ...(message ? [["Message", text(message), true]] : []),
    ));
    members.update(cluster.members.map((node) => ({ ...node, isThis: node.node_id === cluster.node_id })));
    const shown = pairs(["Cluster id", h("span", { class: "key" }, cluster.cluster_id)], ...Object.entries(cluster.settings).map(([name, value]) => [name, number(value)]));
    if (!settings.firstChild?.isEqualNode(shown)) put(settings, shown);
    if (whole[0].parentNode !== place) put(place, ...whole);
  }

  on("cluster", update);
  // The stream sends the cluster only when it changes.
  get("/readyz").then(({ message }) => ({ ready: true, message }), (problem) => ({ ready: false, message: problem.message }))
    .then(async (state) => update({ ...state, cluster: await cluster() }))
    .catch((error) => {
      if (!(error instanceof Problem)) throw error;
      put(place, h("section", { class: "panel" }, failed(error)));
    });
  return [heading("Nodes", "Which nodes there are, which one leads, and how far each is behind."), place];
}

/** The cluster; nothing where the server runs in memory. */
async function cluster() {
  const { has_cluster: hasCluster } = await get("/console/server.json");
  return hasCluster ? get("/v1/admin/cluster") : null;
}
