// The drawing of a cognitive tree or of a graph of states: nodes in rows, edges, their directions, the legend.
const LAYER = 92; // distance of two rows
const MARGIN = 46; // room for the outermost nodes and their marks
const canvas = document.getElementById("tree-canvas");

// Orange - grey - blue: distinguishable with every common colour blindness, and the value is printed as well.
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

function byState(tree) {
  return tree.by === "state";
}

function stepName(tree, node) {
  if (!byState(tree)) return node.depth ? `step ${node.depth}` : "the task";
  if (!node.depth) return "the start";
  return node.ending ? `ending at step ${node.depth}` : `state first met after step ${node.depth}`;
}

// Who is in a node: by state a trajectory may come more than once.
function crowd(tree, node) {
  if (!byState(tree)) return count(node.members.length, "member");
  return `${count(node.members.length, "visit")} by ${count(through(node).size, "trajectory", "trajectories")}`;
}

function through(node) {
  return new Set(node.members.map(([i]) => i));
}

// Where an edge leads that does not lead to the next row; empty for one that does.
function direction(edge, from, to) {
  if (!edge.way) return "";
  if (to.row < from.row) return to.depth ? "back to a state met earlier" : "back to the start";
  return to.row === from.row ? "to a state first met at the same step" : `on to a state first met ${to.depth - from.depth} steps later`;
}

function marks(tree, node) {
  const names = [];
  if (tree.divergences.some((d) => d.node === node.id)) names.push("divergence");
  if (node.bestOf.length) names.push("v+ (better way)");
  if (node.worstOf.length) names.push("v− (worse way)");
  if (node.ending) names.push("ending");
  if (wayStep(tree, node.id)) names.push(`step ${wayStep(tree, node.id)} of the way leads here`);
  const { begun, stopped } = forksIn(tree, node);
  if (begun.length) names.push(`${count(begun.length, "fork")} begin${begun.length > 1 ? "" : "s"} here`);
  if (stopped.length) names.push(`${count(stopped.length, "fork")} stopped here`);
  return names;
}

function draw() {
  const tree = trees[current];
  const [low, high] = range(tree);
  const widest = tree.width;
  const available = canvas.clientWidth || 640;
  const unit = widest ? Math.min(130, Math.max(42, (available - 2 * MARGIN) / widest)) : 0;
  const width = Math.max(available, widest * unit + 2 * MARGIN);
  const height = (tree.rows.length - 1) * LAYER + 2 * MARGIN;
  const left = (width - widest * unit) / 2;
  const most = byState(tree) ? Math.max(...tree.nodes.map((node) => node.members.length)) : tree.rewards.length;
  const at = ([x, row]) => [left + x * unit, MARGIN + row * LAYER];
  const spot = new Map(tree.nodes.map((node) => {
    const [x, y] = at([node.x, node.row]);
    return [node.id, { x, y, node, radius: 13 + 8 * Math.sqrt(node.members.length / Math.max(1, most)) }];
  }));
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": byState(tree) ? "graph of states" : "cognitive tree" });

  tree.rows.forEach((depth, row) => {
    svg.append(shape("text", { class: "depth", x: 4, y: MARGIN + row * LAYER + 4 }, depth ? String(depth) : byState(tree) ? "start" : "task"));
  });
  const kinds = new Map();
  for (const divergence of tree.divergences) {
    kinds.set(`${divergence.node} ${divergence.best}`, "best");
    kinds.set(`${divergence.node} ${divergence.worst}`, "worst");
  }
  const [rails, badges] = [shape("g", { class: "rails" }), shape("g", { class: "badges" })]; // of the way, below and above all edges
  svg.append(rails);
  for (const edge of tree.edges) {
    const [from, to] = [spot.get(edge.source), spot.get(edge.target)];
    if (!from || !to || from === to) continue;
    const bend = (to.y - from.y) / 2;
    const points = edge.way ? edge.way.map(at) : [[from.x, from.y], [from.x, from.y + bend], [to.x, to.y - bend], [to.x, to.y]];
    const [start, ...rest] = points.map((point) => point.map((length) => length.toFixed(1)).join(" "));
    const path = `M${start}C${rest.join(" ")}`;
    const kind = kinds.get(`${edge.source} ${edge.target}`) || "";
    const back = edge.way && to.node.row <= from.node.row ? "back" : "";
    const fork = edge.trajectories.every((i) => forkOf(tree, i)) ? "fork" : "";
    const step = wayStep(tree, edge.target, edge.source);
    const share = edge.trajectories.length / Math.max(1, tree.rewards.length);
    const thick = 1 + (edge.way ? 3 : 7) * share; // curves are many and cross others
    if (step) {
      rails.append(shape("path", { class: "rail", d: path, "stroke-width": thick + 8 }), shape("path", { class: "between", d: path, "stroke-width": thick + 4 }));
      badges.append(badge(pointOn(points, 0.5), step));
    }
    svg.append(shape("path", { class: `edge ${fork} ${kind} ${back}`, d: path, "stroke-width": thick }));
    if (edge.way) svg.append(arrow(points, to.radius * (tree.divergences.some((d) => d.node === edge.target) ? 1.25 : 1), thick, `arrow ${kind} ${back}`));
    const way = direction(edge, from.node, to.node);
    const touch = shape("path", { class: "touch", d: path });
    touch.addEventListener("pointermove", (event) => showTooltip([
      `weight ${decimal(edge.weight)}`,
      `${edge.trajectories.length} of ${count(through(from.node).size, "trajectory", "trajectories")}: ${listed(tree, edge.trajectories)}`,
      ...(step ? [`step ${step} of the way, from ${inFull(tree, tree.way.steps[step - 1][0])}`] : []),
      ...forkLines(tree, edge.trajectories),
      ...(way ? [way] : []),
      ...(kind ? [kind === "best" ? "better way from a divergence" : "worse way from a divergence"] : []),
    ], event.clientX, event.clientY));
    touch.addEventListener("pointerleave", hideTooltip);
    svg.append(touch);
  }
  svg.append(badges);
  for (const place of spot.values()) svg.append(drawNode(tree, place, unit, width, low, high));
  canvas.replaceChildren(svg);
}

// A point of a cubic Bezier curve.
function pointOn([a, b, c, d], t) {
  return a.map((_, k) => (1 - t) ** 3 * a[k] + 3 * t * (1 - t) ** 2 * b[k] + 3 * t ** 2 * (1 - t) * c[k] + t ** 3 * d[k]);
}

// The number of a step of the way, on its edge.
function badge([x, y], number) {
  return shape("g", { class: "badge", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
    shape("circle", { r: 8.5 }), shape("text", { "text-anchor": "middle", y: 3.8 }, String(number)));
}

// A small fork, for the states that forks begin in.
function forkMark(x, y) {
  return shape("path", { class: "forks", d: `M${x} ${y}v-4l-4 -5m4 5l4 -5` });
}

// The head of an arrow where a curve comes to its target's outline.
function arrow(points, radius, thick, name) {
  const d = points[3];
  const point = (t) => pointOn(points, t);
  const away = ([x, y]) => Math.hypot(x - d[0], y - d[1]);
  const size = 7 + 1.5 * thick;
  let [tip, tail] = [1, 1];
  while (tip > 0 && away(point(tip)) < radius + 2) tip -= 0.005;
  for (tail = tip; tail > 0 && away(point(tail)) < radius + 2 + size;) tail -= 0.005;
  const [[x, y], [u, v]] = [point(Math.max(0, tip)), point(Math.max(0, tail))];
  const [length, half] = [Math.hypot(x - u, y - v) || 1, size * 0.45];
  const [across, along] = [(half * (y - v)) / length, (half * (x - u)) / length];
  const corners = [[x, y], [u - across, v + along], [u + across, v - along]];
  return shape("polygon", { class: name, points: corners.map((corner) => corner.map((n) => n.toFixed(1)).join(",")).join(" ") });
}

function drawNode(tree, { x, y, node, radius }, unit, width, low, high) {
  const divergence = tree.divergences.find((d) => d.node === node.id);
  const fill = node.value === null ? [150, 150, 150] : colour(node.value, low, high);
  const action = node.texts[0][1];
  const group = shape("g", {
    class: node.id === chosen ? "node chosen" : "node", transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "data-node": node.id,
    "aria-label": [stepName(tree, node), `value ${decimal(node.value)}`, crowd(tree, node), ...marks(tree, node), action].join(", "),
  });
  if (!node.depth) group.append(outline(node, radius + 4, Boolean(divergence), { class: "ring" }));
  group.append(outline(node, radius, Boolean(divergence), { class: "body", fill: `rgb(${fill.join(" ")})` }));
  group.append(shape("text", { class: "value", fill: ink(fill), "text-anchor": "middle", y: 4 }, decimal(node.value)));
  const above = [node.bestOf.length ? "v+" : "", node.worstOf.length ? "v−" : ""].filter(Boolean).join(" ");
  if (above) group.append(shape("text", { class: "mark", x: radius * 0.6, y: -radius - 1 }, above));
  if (divergence && divergence.graft !== null) group.append(shape("text", { class: "mark star", x: -radius - 11, y: -radius * 0.7 }, "★"));
  const beside = tree.nodes.filter((other) => other.row === node.row && other.id !== node.id).map((other) => (other.x - node.x) * unit);
  const gaps = beside.map(Math.abs);
  // A few letters would all be the same ("search[…"): better none, the words are a click away.
  const letters = Math.floor(Math.min(150, 2 * x, 2 * (width - x), ...gaps) / 6.2);
  const foot = radius * (divergence ? 1.25 : 1);
  if (byState(tree)) { // a state is reached by more than one action: how often says more
    const { begun } = forksIn(tree, node);
    const [visits, forks] = [node.members.length > 1 ? `×${node.members.length}` : "", begun.length ? String(begun.length) : ""];
    const [first, second] = [6.5 * visits.length + (visits && 4), forks && 12 + 6.5 * forks.length]; // widths
    const free = beside.every((gap) => gap > 0 || gap < -90); // of the marks of a node on the left
    const [x, y] = [free && wayLeavesRight(tree, node) ? -radius * 0.7 - first - second : radius * 0.7, radius + 7];
    if (visits) group.append(shape("text", { class: "action", x, y }, visits));
    if (forks) group.append(forkMark(x + first + 4, y), shape("text", { class: "action", x: x + first + 10, y }, forks));
  } else if (node.depth && letters >= 12) {
    group.append(shape("text", { class: "action", "text-anchor": "middle", y: foot + 12 }, shortened(action, letters)));
  }
  group.addEventListener("click", () => choose(node.id, true));
  group.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(node.id, true);
  });
  group.addEventListener("pointermove", (event) => showTooltip(
    [`${stepName(tree, node)}: value ${decimal(node.value)}`, ...(byState(tree) ? [crowd(tree, node)] : []), ...(action ? [shortened(action, 120)] : []), ...marks(tree, node)],
    event.clientX, event.clientY,
  ));
  group.addEventListener("pointerleave", hideTooltip);
  return group;
}

function legend(tree) {
  const [low, high] = range(tree);
  const scale = shape("svg", { viewBox: "0 0 110 14", width: 110, height: 14, "aria-hidden": true });
  for (let k = 0; k < 22; k++) {
    scale.append(shape("rect", { x: 5 * k, width: 5.5, height: 14, fill: `rgb(${colour(low + ((k + 0.5) / 22) * (high - low), low, high).join(" ")})` }));
  }
  const sample = (node, divergent) => shape("svg", { viewBox: "-12 -12 24 24", width: 20, height: 20, "aria-hidden": true },
    outline(node, 8, divergent, { class: "body plain" }));
  document.getElementById("tree-legend").replaceChildren(element("ul", { class: "legend" },
    element("li", {}, `value ${decimal(low, 1)} `, scale, ` ${decimal(high, 1)}`),
    element("li", {}, sample({ ending: false }, false), byState(tree) ? "state (size and ×n: visits)" : "step (size: members)"),
    element("li", {}, sample({ ending: false }, true), "divergence"),
    element("li", {}, sample({ ending: true }, false), "ending"),
    element("li", {}, element("b", {}, "v+"), " better way"),
    element("li", {}, element("b", {}, "v−"), " worse way (dashed)"),
    element("li", {}, element("b", { class: "star" }, "★"), " has a graft"),
    tree.way ? element("li", {}, shape("svg", { viewBox: "0 0 40 20", width: 40, height: 20, "aria-hidden": true },
      shape("path", { class: "rail", d: "M0 10H40", "stroke-width": 11 }), shape("path", { class: "between", d: "M0 10H40", "stroke-width": 7 }),
      shape("path", { class: "edge", d: "M0 10H40", "stroke-width": 2 }), badge([20, 10], 1)), "the way, its steps numbered") : "",
    canvas.querySelector(".edge.fork") ? element("li", {}, shape("svg", { viewBox: "0 0 40 10", width: 40, height: 10, "aria-hidden": true },
      shape("path", { class: "edge fork", d: "M0 5H40", "stroke-width": 2 })), "only forks went here") : "",
    canvas.querySelector(".forks") ? element("li", {}, shape("svg", { viewBox: "-6 -11 12 13", width: 14, height: 15, "aria-hidden": true }, forkMark(0, 1)), "forks begin here") : "",
    ...[["back", "back to an earlier row"], ["", "past a row"]].filter(([name]) => canvas.querySelector(name ? ".arrow.back" : ".arrow:not(.back)"))
      .map(([name, text]) => element("li", {}, shape("svg", { viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": true },
        shape("path", { class: `edge ${name}`, d: "M1 11C9 1 17 1 25 7", "stroke-width": 2 }), shape("polygon", { class: `arrow ${name}`, points: "33,12 22,10 27,3" })), ` ${text}`)),
  ));
}
