// Which tree is shown, and what is read when a node is chosen.
const trees = data.trees;
const panel = document.getElementById("tree-panel");
const MOST_READ = 12; // wordings of a node that are read at once
let current = -1; // index of the tree shown
let chosen = null; // id of the node read

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
  markCredits(node);
  const { top } = panel.getBoundingClientRect();
  if (byHand && (top > window.innerHeight - 80 || top < 0)) panel.scrollIntoView({ block: "start" });
}

// Failed, successful and grafted thought side by side.
function contrast(tree, divergence) {
  const graft = divergence.graft === null ? null : tree.grafts[divergence.graft];
  const failed = graft ? graft.failed : textOf(tree, divergence.worst, divergence.worstStep);
  const succeeded = graft ? graft.succeeded : textOf(tree, divergence.best, divergence.bestStep);
  const size = (id) => count(
    tree.edges.find((edge) => edge.source === divergence.node && edge.target === id)?.trajectories.length ?? 0, "trajectory", "trajectories",
  );
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
          : [element("p", { class: "missing" }, 
            data.pairs ? "None was kept for this divergence (the table under Grafts counts the reasons)." : "This run grafts no thoughts.")]),
      )),
  );
}

// The text of a member, or by depth of the node's first member where that of the member was not recorded: the same decision.
function textOf(tree, id, [trajectory, turn]) {
  const node = tree.nodes.find((candidate) => candidate.id === id);
  const at = node.members.findIndex(([i, t]) => i === trajectory && t === turn);
  const which = at >= 0 ? node.which[at] : 0;
  if (which < 0 && byState(tree)) return { thought: "", action: "(not recorded)", observation: "" };
  const [thought, action, observation] = node.texts[Math.max(0, which)];
  return { thought, action, observation };
}

function about(tree, node) {
  const facts = [
    `value ${decimal(node.value)}`,
    ...(node.advantage === null ? [] : [`${byState(tree) ? "mean advantage of the steps into it" : "advantage"} ${signed(node.advantage)}`]),
    `mean reward ${decimal(node.reward)}${tree.forks.some((fork) => fork.stopped) ? " (with expected ones)" : ""}`,
    `${byState(tree) ? `${count(node.members.length, "visit")} by ` : ""}${through(node).size} of ${count(tree.rewards.length, "trajectory", "trajectories")}`,
    ...marks(tree, node),
  ];
  const name = stepName(tree, node);
  const section = element("section", {},
    element("h3", {}, capital(name)),
    element("ul", { class: "facts" }, ...facts.map((fact) => element("li", {}, fact))),
  );
  if (!node.depth) section.append(said({ task: tree.instruction }));
  const words = node.texts.map((text, k) => [text, node.members.filter(([, t], m) => t >= 0 && node.which[m] === k)]).filter(([, who]) => who.length);
  const read = words.map(([[thought, action, observation], who]) => element("div", { class: "member" },
    element("h4", {}, named(tree, who)), said({ thought, action, observation })));
  section.append(...read.slice(0, MOST_READ));
  if (read.length > MOST_READ) {
    section.append(element("details", {}, element("summary", {}, `${read.length - MOST_READ} more`), ...read.slice(MOST_READ)));
  }
  const silent = node.members.filter(([, t], k) => t >= 0 && node.which[k] < 0);
  if (silent.length) {
    const what = byState(tree) ? (words.length ? "Further visits of this state" : "Visits of this state") : "Merged with these (judged the same decision)";
    section.append(element("p", { class: "missing" }, `${what}: ${named(tree, silent)}. Their words are not in the recorded episodes.`));
  }
  const { begun } = forksIn(tree, node);
  if (begun.length) section.append(element("h4", {}, "Forks that begin here"), forkList(tree, begun));
  const onward = tree.edges.filter((edge) => edge.source === node.id);
  if (onward.length) {
    section.append(element("h4", {}, "Ways on"), element("ul", { class: "ways" }, ...onward.map((edge) => {
      const target = tree.nodes.find((candidate) => candidate.id === edge.target);
      const way = direction(edge, node, target);
      const button = element("button", { type: "button" }, [
        `weight ${decimal(edge.weight)}, value ${decimal(target.value)}${way ? `, ${way}` : ""}`,
        shortened(textOf(tree, target.id, passage(node, target)).action, 70) || "(no action)",
      ].join(": "));
      button.addEventListener("click", () => choose(edge.target, true));
      return element("li", {}, button);
    })));
  }
  return section;
}

// The first member of a node that came from another one: what it did to get there.
function passage(from, to) {
  const before = new Set(from.members.map(([i, t]) => `${i} ${t + 1}`));
  const came = to.members.map((member, k) => [member, to.which[k]]).filter(([[i, t]]) => before.has(`${i} ${t}`));
  return (came.find(([, which]) => which >= 0) || came[0] || [to.members[0]])[0];
}

// By state a trajectory may be there more than once, so the steps are named as well.
function named(tree, members) {
  const steps = new Map();
  for (const [i, t] of members) steps.set(i, [...(steps.get(i) || []), stepNumber(tree, i, t)]);
  const visits = (i) => !byState(tree) ? "" : `, ${steps.get(i).length === 1 ? "step" : "steps"} ${steps.get(i).join(", ")}`;
  const all = [...steps.keys()];
  if (all.length === 1) return `${who(tree, all[0])} (${earned(tree, all[0])})${visits(all[0])}`;
  const named = (i) => `${i} (${forkOf(tree, i)?.stopped ? "expected " : ""}${decimal(tree.rewards[i])}${visits(i)})`;
  const kinds = [["episode", all.filter((i) => !forkOf(tree, i))], ["fork", all.filter((i) => forkOf(tree, i))]].filter(([, some]) => some.length);
  return kinds.map(([noun, some]) => `${noun}${some.length > 1 ? "s" : ""} ${some.map(named).join(byState(tree) ? "; " : ", ")}`).join("; ");
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
    `rewards ${tree.rewards.slice(0, tree.rewards.length - tree.forks.length).map((reward) => decimal(reward, reward === null || Number.isInteger(reward) ? 0 : 2)).join(" ")}`,
    `${decimal(stats.nodes_before, 0)} steps in ${decimal(stats.nodes_after, 0)} ${byState(tree) ? "states and endings" : "nodes"} (merge ratio ${decimal(stats.merge_ratio)})`,
    ...(tree.gamma === null ? [] : [`gamma ${decimal(tree.gamma)}`]),
    `depth ${decimal(stats.depth, 0)}`,
    count(tree.divergences.length, "divergence"),
    count(tree.grafts.length, "graft"),
  ];
  document.getElementById("tree-about").replaceChildren(
    element("p", { class: "instruction" }, tree.instruction),
    element("ul", { class: "facts" }, ...facts.map((fact) => element("li", {}, fact))),
  );
  draw();
  legend(tree);
  showWay(tree);
  showForks(tree);
  document.getElementById("tree-ways").hidden = !tree.way && !tree.forks.length;
  showCredits(tree);
  choose(chosen, false);
}

function fillTasks(iteration) {
  const options = trees.map((tree, index) => [tree, index]).filter(([tree]) => tree.iteration === iteration);
  document.getElementById("tree-task").replaceChildren(...options.map(([tree, index]) => element("option", { value: index },
    `${shortened(tree.task, 40)} (${[count(tree.divergences.length, "divergence"), count(tree.grafts.length, "graft"),
      ...(tree.way ? [`way of ${count(tree.way.steps.length, "step")}`] : []), ...(tree.forks.length ? [count(tree.forks.length, "fork")] : [])].join(", ")})`)));
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
      // A pair at the way may stand where no divergence is: there its worse step was taken.
      const [i, t] = button.dataset.step.split(",").map(Number);
      const taken = trees[index].nodes.find((node) => node.members.some(([j, u]) => j === i && u === t - 1));
      showTree(index, exact ? exact.node : taken ? taken.id : null);
      document.getElementById("trees").scrollIntoView();
    });
  }
  // The last tree with a graft of the policy's own is the best example of what the run learnt.
  const own = trees.findLastIndex((tree) => tree.grafts.some((graft) => graft.source === "model"));
  const stitched = trees.findLastIndex((tree) => tree.way && new Set(tree.way.steps.map(([i]) => i)).size > 1);
  showTree([own, stitched].find((index) => index >= 0) ?? trees.length - 1);
  let width = canvas.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(canvas.clientWidth - width) < 8) return;
    width = canvas.clientWidth;
    draw();
  }).observe(canvas);
}
