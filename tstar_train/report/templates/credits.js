// What each way to credit the steps of one group gives, side by side for a trajectory.
const CREDITS = [
  ["grpo", "GRPO", "every step of an episode gets the same: its reward less the group's mean."],
  ["depth_value", "paper", "as in the paper, the value of the node that the step leads to in the tree by depth, less the group's mean reward."],
  ["depth_transition", "depth, gain", "the value of the node that the step leads to in the tree by depth, less that of the node it was taken in."],
  ["state_value", "state", "the value of the state that the step leads to, less that of the start."],
  ["state_transition", "state, gain",
    "the value of the state that the step leads to, less that of the state it was taken in: what the step itself gained. Around a loop it cancels."],
];
const credits = document.getElementById("tree-credits");

function showCredits(tree) {
  const kinds = CREDITS.filter(([name]) => tree.credits[name]);
  const missing = absent(tree).map((sentence) => element("p", { class: "missing" }, sentence));
  if (!kinds.length) {
    credits.replaceChildren(element("h3", {}, "Credits"), ...missing);
    return;
  }
  const option = (_, i) => element("option", { value: i },
    `${tree.forks.length ? inFull(tree, i) : i}: ${earned(tree, i)}, ${count(tree.credits[kinds[0][0]][i].length, "step")}`);
  const picker = element("select", {}, ...tree.rewards.map(option));
  const table = element("table", { class: "credits" });
  const fill = () => {
    table.replaceChildren(...creditRows(tree, kinds, Number(picker.value)));
    markCredits(tree.nodes.find((node) => node.id === chosen));
  };
  const lengths = tree.credits[kinds[0][0]].map((row) => row.length);
  picker.value = String(lengths.indexOf(Math.max(...lengths))); // the longest shows most
  picker.addEventListener("change", fill);
  credits.replaceChildren(
    element("h3", {}, "What each credit gives"),
    element("div", { class: "controls" }, element("label", {}, "Trajectory ", picker)),
    table, ...missing,
    element("ul", { class: "kinds" }, ...kinds.map(([name, label, sentence]) => element("li", {},
      element("b", {}, label), data.trained === name ? " (this run's): " : ": ", sentence)),
    element("li", {}, tree.forks.length
      ? "All are divided by the standard deviation of the reward of an episode on the graph, plus 0.1; bars of one group share one scale. The first step of a fork gets none where it was chosen because nobody had tried it."
      : "All are divided by the standard deviation of the group's rewards; bars of one group share one scale.")),
  );
  fill();
}

// Why a column is not there, or not quite what its name says.
function absent(tree) {
  const has = (by) => CREDITS.some(([name]) => name.startsWith(by) && tree.credits[name]);
  const known = tree.rewards.filter((_, i) => !forkOf(tree, i)?.stopped);
  const equal = new Set(known).size === 1 ? ["All rewards of the group are equal, so every credit is 0."] : [];
  if (tree.forks.length && has("state")) return ["The columns GRPO and by depth are missing: they compare whole episodes, and the group has forks.", ...equal];
  if (!has("grpo")) return ["This tree was written before credits were kept with it."];
  const sentences = [];
  if (has("depth") && tree.by === "state")
    sentences.push("A run by state asks for no KL: for the columns by depth, equal states at a depth stand for equal decisions.");
  if (!has("depth")) sentences.push("The paper's column is missing: its tree merges steps by the policy's KL, and a run by state asks for none.");
  if (!has("state")) sentences.push("The columns by state are missing: steps of this environment have no state key.");
  return [...sentences, ...equal];
}

function creditRows(tree, kinds, trajectory) {
  const most = Math.max(1e-9, ...kinds.flatMap(([name]) => tree.credits[name].flat().map((credit) => Math.abs(credit ?? 0))));
  const reached = new Map(tree.nodes.flatMap((node) => node.members.filter(([i]) => i === trajectory).map(([, t]) => [t, node.id])));
  const rows = tree.credits[kinds[0][0]][trajectory].map((_, t) => {
    const node = reached.get(t);
    const number = stepNumber(tree, trajectory, t);
    const button = element("button", { type: "button", "aria-label": `step ${number}: show where it leads` }, String(number));
    button.addEventListener("click", () => choose(node, true));
    const { action } = textOf(tree, node, [trajectory, t]);
    return element("tr", { "data-leads": node },
      element("th", { scope: "row" }, button),
      element("td", { class: "wrap action" }, shortened(action, 60) || "(no action)"),
      ...kinds.map(([name, label]) => {
        const credit = tree.credits[name][trajectory][t];
        return element("td", { class: "credit", "data-label": label }, element("span", {}, signed(credit)), bar(credit, most));
      }));
  });
  const fork = forkOf(tree, trajectory);
  const heads = ["step", "action", ...kinds.map(([, label]) => label)];
  return [
    element("caption", {}, `${capital(fork ? forkFacts(tree, fork) : `${who(tree, trajectory)}, ${earned(tree, trajectory)}`)}; a step's number shows where it leads.`),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows),
  ];
}

// A trajectory's steps in the table, and where its first one leads in the drawing.
function chooseTrajectory(i) {
  const picker = credits.querySelector("select");
  if (picker) {
    picker.value = String(i);
    picker.dispatchEvent(new Event("change"));
  }
  choose(trees[current].nodes.find((node) => node.members.some(([j, t]) => j === i && t === 0)).id, false);
  const { top } = credits.getBoundingClientRect();
  if (top > window.innerHeight - 80 || top < 0) credits.scrollIntoView({ block: "start" });
}

function bar(credit, most) {
  const length = (29 * Math.abs(credit ?? 0)) / most;
  return shape("svg", { viewBox: "0 0 60 12", width: 60, height: 12, "aria-hidden": true },
    shape("rect", { class: credit < 0 ? "minus" : "plus", x: credit < 0 ? 30 - length : 30, y: 2, width: length, height: 8 }),
    shape("line", { class: "axis", x1: 30, x2: 30, y1: 0, y2: 12 }));
}

// The rows whose steps lead to the node that is read.
function markCredits(node) {
  for (const row of credits.querySelectorAll("tbody tr")) {
    const here = node !== undefined && Number(row.dataset.leads) === node.id;
    row.classList.toggle("here", here);
    if (here) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}
