// The drawing of a cognitive tree, and what is read when a node is chosen.
const trees = data.trees;
const LAYER = 92; // distance of two layers
const MARGIN = 46; // room for the outermost nodes and their marks
const canvas = document.getElementById("tree-canvas");
const panel = document.getElementById("tree-panel");
let current = -1; // index of the tree shown
let chosen = null; // id of the node read

// Orange - grey - blue: told apart with every common colour blindness, and the value is printed as well.
function colour(value, low, high) {
  const [bad, middle, good] = [[186, 78, 24], [232, 228, 220], [24, 92, 168]];
  const share = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
  const [from, to, part] = share < 0.5 ? [bad, middle, share * 2] : [middle, good, share * 2 - 1];
  return from.map((channel, k) => Math.round(channel + (to[k] - channel) * part));
}

function ink([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

function range(tree) {
  const values = tree.rewards.filter((reward) => reward !== null);
  return [Math.min(0, ...values), Math.max(1, ...values)];
}

function outline(node, radius, divergent, attributes) {
  if (divergent) {
    const r = radius * 1.25;
    return shape("polygon", { points: `0,${-r} ${r},0 0,${r} ${-r},0`, ...attributes });
  }
  if (node.ending) {
    const r = radius * 0.9;
    return shape("rect", { x: -r, y: -r, width: 2 * r, height: 2 * r, rx: 2, ...attributes });
  }
  return shape("circle", { r: radius, ...attributes });
}

function stepName(node) {
  return node.depth ? `step ${node.depth}` : "the task";
}

function marks(tree, node) {
  const names = [];
  if (tree.divergences.some((d) => d.node === node.id)) names.push("divergence");
  if (node.bestOf.length) names.push("v+ (better way)");
  if (node.worstOf.length) names.push("v− (worse way)");
  if (node.ending) names.push("ending");
  return names;
}

function draw() {
  const tree = trees[current];
  const [low, high] = range(tree);
  const widest = Math.max(...tree.nodes.map((node) => node.x));
  const deepest = Math.max(...tree.nodes.map((node) => node.depth));
  const available = canvas.clientWidth || 640;
  const unit = widest ? Math.min(130, Math.max(42, (available - 2 * MARGIN) / widest)) : 0;
  const width = Math.max(available, widest * unit + 2 * MARGIN);
  const height = deepest * LAYER + 2 * MARGIN;
  const left = (width - widest * unit) / 2;
  const spot = new Map(tree.nodes.map((node) => [node.id, { x: left + node.x * unit, y: MARGIN + node.depth * LAYER, node }]));
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "cognitive tree" });

  for (let depth = 0; depth <= deepest; depth++) {
    svg.append(shape("text", { class: "depth", x: 4, y: MARGIN + depth * LAYER + 4 }, depth ? String(depth) : "task"));
  }
  const kinds = new Map();
  for (const divergence of tree.divergences) {
    kinds.set(`${divergence.node} ${divergence.best}`, "best");
    kinds.set(`${divergence.node} ${divergence.worst}`, "worst");
  }
  for (const edge of tree.edges) {
    const [from, to] = [spot.get(edge.source), spot.get(edge.target)];
    if (!from || !to) continue;
    const bend = (to.y - from.y) / 2;
    const path = `M${from.x} ${from.y}C${from.x} ${from.y + bend} ${to.x} ${to.y - bend} ${to.x} ${to.y}`;
    const kind = kinds.get(`${edge.source} ${edge.target}`) || "";
    svg.append(shape("path", {
      class: `edge ${kind}`, d: path, "stroke-width": 1 + (7 * edge.trajectories.length) / Math.max(1, tree.rewards.length),
    }));
    const touch = shape("path", { class: "touch", d: path });
    touch.addEventListener("pointermove", (event) => showTooltip([
      `weight ${decimal(edge.weight)}`,
      `${edge.trajectories.length} of ${count(from.node.members.length, "trajectory", "trajectories")}: ${edge.trajectories.join(", ")}`,
      ...(kind ? [kind === "best" ? "better way from a divergence" : "worse way from a divergence"] : []),
    ], event.clientX, event.clientY));
    touch.addEventListener("pointerleave", hideTooltip);
    svg.append(touch);
  }
  for (const { x, y, node } of spot.values()) svg.append(drawNode(tree, node, x, y, unit, width, low, high));
  canvas.replaceChildren(svg);
}

function drawNode(tree, node, x, y, unit, width, low, high) {
  const divergence = tree.divergences.find((d) => d.node === node.id);
  const radius = 13 + 8 * Math.sqrt(node.members.length / Math.max(1, tree.rewards.length));
  const fill = node.value === null ? [150, 150, 150] : colour(node.value, low, high);
  const action = node.texts[0][1];
  const group = shape("g", {
    class: node.id === chosen ? "node chosen" : "node", transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "data-node": node.id,
    "aria-label": [stepName(node), `value ${decimal(node.value)}`, count(node.members.length, "member"), ...marks(tree, node), action].join(", "),
  });
  if (!node.depth) group.append(outline(node, radius + 4, Boolean(divergence), { class: "ring" }));
  group.append(outline(node, radius, Boolean(divergence), { class: "body", fill: `rgb(${fill.join(" ")})` }));
  group.append(shape("text", { class: "value", fill: ink(fill), "text-anchor": "middle", y: 4 }, decimal(node.value)));
  const above = [node.bestOf.length ? "v+" : "", node.worstOf.length ? "v−" : ""].filter(Boolean).join(" ");
  if (above) group.append(shape("text", { class: "mark", x: radius * 0.6, y: -radius - 1 }, above));
  if (divergence && divergence.graft !== null) group.append(shape("text", { class: "mark star", x: -radius - 11, y: -radius * 0.7 }, "★"));
  const gaps = tree.nodes.filter((other) => other.depth === node.depth && other.id !== node.id).map((other) => Math.abs(other.x - node.x) * unit);
  // A few letters would all be the same ("search[…"): better none, the words are a click away.
  const letters = Math.floor(Math.min(150, 2 * x, 2 * (width - x), ...gaps) / 6.2);
  if (node.depth && letters >= 12) {
    group.append(shape("text", { class: "action", "text-anchor": "middle", y: radius * (divergence ? 1.25 : 1) + 12 }, shortened(action, letters)));
  }
  group.addEventListener("click", () => choose(node.id, true));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(node.id, true);
  });
  group.addEventListener("pointermove", (event) => showTooltip(
    [`${stepName(node)}: value ${decimal(node.value)}`, ...(action ? [shortened(action, 120)] : []), ...marks(tree, node)],
    event.clientX, event.clientY,
  ));
  group.addEventListener("pointerleave", hideTooltip);
  return group;
}

function choose(id, byHand) {
  chosen = id;
  for (const group of canvas.querySelectorAll(".node")) group.classList.toggle("chosen", Number(group.dataset.node) === id);
  const tree = trees[current];
  const node = tree.nodes.find((candidate) => candidate.id === id);
  panel.replaceChildren(
    ...tree.divergences.filter((d) => d.node === id).map((divergence) => contrast(tree, divergence)),
    about(tree, node),
  );
  panel.scrollTop = 0;
  if (byHand && panel.getBoundingClientRect().top > window.innerHeight - 80) panel.scrollIntoView({ block: "start" });
}

// Failed, successful and grafted thought side by side.
function contrast(tree, divergence) {
  const graft = divergence.graft === null ? null : tree.grafts[divergence.graft];
  const failed = graft ? graft.failed : textOf(tree, divergence.worst, divergence.worstStep);
  const succeeded = graft ? graft.succeeded : textOf(tree, divergence.best, divergence.bestStep);
  const size = (id) => count(tree.nodes.find((node) => node.id === id).members.length, "trajectory", "trajectories");
  return element("section", { class: "contrast" },
    element("h3", {}, `Divergence: the ways from here differ by ${decimal(divergence.spread)}`),
    element("div", { class: "columns" },
      element("div", { class: "failed" },
        element("h4", {}, `v−  failed (${size(divergence.worst)})`), said(failed)),
      element("div", { class: "succeeded" },
        element("h4", {}, `v+  succeeded (${size(divergence.best)})`), said(succeeded)),
      element("div", { class: "grafted" },
        element("h4", {}, "★  grafted thought"),
        ...(graft ? [said({ thought: graft.thought }), element("p", { class: "missing" },
          graft.source === "model" ? "Written by the policy with both branches in view; training prefers it to the failed thought."
            : graft.source === "z_plus" ? "The successful thought itself, because the policy's own was of no use."
              : `Source: ${graft.source}`)]
          : [element("p", { class: "missing" }, "None was kept for this divergence (the table under Grafts counts the reasons).")]),
      )),
  );
}

// The text of a member, or of the node's first member where that of the member was not recorded.
function textOf(tree, id, [trajectory, turn]) {
  const node = tree.nodes.find((candidate) => candidate.id === id);
  const at = node.members.findIndex(([i, t]) => i === trajectory && t === turn);
  const [thought, action, observation] = node.texts[at >= 0 && node.which[at] >= 0 ? node.which[at] : 0];
  return { thought, action, observation };
}

function about(tree, node) {
  const names = marks(tree, node);
  const facts = [
    `value ${decimal(node.value)}`,
    ...(node.advantage === null ? [] : [`advantage ${signed(node.advantage)}`]),
    `mean reward ${decimal(node.reward)}`,
    `${node.members.length} of ${count(tree.rewards.length, "trajectory", "trajectories")}`,
    ...names,
  ];
  const section = element("section", {},
    element("h3", {}, node.depth ? `Step ${node.depth}` : "The task"),
    element("ul", { class: "facts" }, ...facts.map((fact) => element("li", {}, fact))),
  );
  if (!node.depth) section.append(said({ task: tree.instruction }));
  else section.append(...node.texts.map((text, k) => members(tree, node, k, text)));
  const silent = node.members.filter((_, k) => node.which[k] < 0).map(([i]) => i);
  if (node.depth && silent.length) {
    section.append(element("p", { class: "missing" }, `Merged with these (judged the same decision): ${named(tree, silent)}. Their words are not in the recorded episodes.`));
  }
  const onward = tree.edges.filter((edge) => edge.source === node.id);
  if (onward.length) {
    section.append(element("h4", {}, "Ways on"), element("ul", { class: "ways" }, ...onward.map((edge) => {
      const target = tree.nodes.find((candidate) => candidate.id === edge.target);
      const button = element("button", { type: "button" },
        `weight ${decimal(edge.weight)}, value ${decimal(target.value)}: ${shortened(target.texts[0][1], 70) || "(no action)"}`);
      button.addEventListener("click", () => choose(edge.target, true));
      return element("li", {}, button);
    })));
  }
  return section;
}

function members(tree, node, k, [thought, action, observation]) {
  const who = node.members.filter((_, m) => node.which[m] === k).map(([i]) => i);
  return element("div", { class: "member" }, element("h4", {}, named(tree, who)), said({ thought, action, observation }));
}

function named(tree, who) {
  return who.length === 1 ? `trajectory ${who[0]} (reward ${decimal(tree.rewards[who[0]])})`
    : `trajectories ${who.map((i) => `${i} (${decimal(tree.rewards[i])})`).join(", ")}`;
}

function showTree(index, id = null) {
  current = index;
  const tree = trees[index];
  const grafted = tree.divergences.find((d) => d.graft !== null) || tree.divergences[0];
  chosen = id ?? (grafted ? grafted.node : 0);
  document.getElementById("tree-iteration").value = String(tree.iteration);
  fillTasks(tree.iteration);
  document.getElementById("tree-task").value = String(index);
  const { stats } = tree;
  const facts = [
    `rewards ${tree.rewards.map((reward) => decimal(reward, reward === null || Number.isInteger(reward) ? 0 : 2)).join(" ")}`,
    `${decimal(stats.nodes_before, 0)} steps in ${decimal(stats.nodes_after, 0)} nodes (merge ratio ${decimal(stats.merge_ratio)})`,
    `depth ${decimal(stats.depth, 0)}`,
    count(tree.divergences.length, "divergence"),
    count(tree.grafts.length, "graft"),
  ];
  document.getElementById("tree-about").replaceChildren(
    element("p", { class: "instruction" }, tree.instruction),
    element("ul", { class: "facts" }, ...facts.map((fact) => element("li", {}, fact))),
  );
  legend(...range(tree));
  draw();
  choose(chosen, false);
}

function fillTasks(iteration) {
  const options = trees.map((tree, index) => [tree, index]).filter(([tree]) => tree.iteration === iteration);
  document.getElementById("tree-task").replaceChildren(...options.map(([tree, index]) => element("option", { value: index },
    `${shortened(tree.task, 40)} (${count(tree.divergences.length, "divergence")}, ${count(tree.grafts.length, "graft")})`)));
}

function legend(low, high) {
  const scale = shape("svg", { viewBox: "0 0 110 14", width: 110, height: 14, "aria-hidden": true });
  for (let k = 0; k < 22; k++) {
    scale.append(shape("rect", { x: 5 * k, width: 5.5, height: 14, fill: `rgb(${colour(low + ((k + 0.5) / 22) * (high - low), low, high).join(" ")})` }));
  }
  const sample = (node, divergent) => shape("svg", { viewBox: "-12 -12 24 24", width: 20, height: 20, "aria-hidden": true },
    outline(node, 8, divergent, { class: "body plain" }));
  document.getElementById("tree-legend").replaceChildren(element("ul", { class: "legend" },
    element("li", {}, `value ${decimal(low, 1)} `, scale, ` ${decimal(high, 1)}`),
    element("li", {}, sample({ ending: false }, false), "step (size: members)"),
    element("li", {}, sample({ ending: false }, true), "divergence"),
    element("li", {}, sample({ ending: true }, false), "ending"),
    element("li", {}, element("b", {}, "v+"), " better way"),
    element("li", {}, element("b", {}, "v−"), " worse way (dashed)"),
    element("li", {}, element("b", { class: "star" }, "★"), " has a graft"),
  ));
}

if (trees.length) {
  const iterations = document.getElementById("tree-iteration");
  iterations.append(...[...new Set(trees.map((tree) => tree.iteration))].map((n) => element("option", { value: n }, String(n))));
  iterations.addEventListener("change", () => showTree(trees.findIndex((tree) => tree.iteration === Number(iterations.value))));
  const tasks = document.getElementById("tree-task");
  tasks.addEventListener("change", () => showTree(Number(tasks.value)));
  for (const button of document.querySelectorAll(".show-graft")) {
    button.addEventListener("click", () => {
      const index = Number(button.dataset.tree);
      const matching = trees[index].divergences.filter((d) => d.worstStep.join(",") === button.dataset.step);
      const exact = matching.find((d) => String(trees[index].grafts[d.graft]?.spread) === button.dataset.spread) || matching[0];
      showTree(index, exact ? exact.node : null);
      document.getElementById("trees").scrollIntoView();
    });
  }
  // The last tree with a graft of the policy's own is the best example of what the run learnt.
  const own = trees.findLastIndex((tree) => tree.grafts.some((graft) => graft.source === "model"));
  showTree(own >= 0 ? own : trees.length - 1);
  let width = canvas.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(canvas.clientWidth - width) < 8) return;
    width = canvas.clientWidth;
    draw();
  }).observe(canvas);
}
