// The way through a group's states to its best ending, and forks: who they are and what is read about them.
const MOST_FORKS = 3; // forks that a tooltip describes
const wayText = document.getElementById("tree-way");
const forkText = document.getElementById("tree-forks");

function forkOf(tree, i) {
  return tree.forks.find((fork) => fork.trajectory === i);
}

function who(tree, i) {
  return `${forkOf(tree, i) ? "fork" : "episode"} ${i}`;
}

// With where it came from.
function inFull(tree, i) {
  const fork = forkOf(tree, i);
  return fork ? `${who(tree, i)} of ${who(tree, fork.parent)}` : who(tree, i);
}

// A step's number within the episode: a fork goes on where its state was left.
function stepNumber(tree, i, t) {
  return (forkOf(tree, i)?.turn ?? 0) + t + 1;
}

function earned(tree, i) {
  return `${forkOf(tree, i)?.stopped ? "expected reward" : "reward"} ${decimal(tree.rewards[i])}`;
}

// Episodes, then forks, without names of their own where there are no forks.
function listed(tree, all) {
  const forks = all.filter((i) => forkOf(tree, i));
  const parts = [["episode", all.filter((i) => !forks.includes(i))], ["fork", forks]].filter(([, some]) => some.length);
  return tree.forks.length ? parts.map(([noun, some]) => `${noun}${some.length > 1 ? "s" : ""} ${some.join(", ")}`).join("; ") : all.join(", ");
}

function forkFacts(tree, fork) {
  const i = fork.trajectory;
  const begins = fork.turn ? `begins after step ${fork.turn}` : "begins at the start";
  const ended = fork.stopped ? `stopped in a known state, ${earned(tree, i)}` : `ended with ${earned(tree, i)}`;
  return `${inFull(tree, i)}: ${begins}${fork.untried ? " with an action that nobody had tried" : ""}, ${count(fork.steps, "step")}, ${ended}`;
}

// What a tooltip says of the forks among some trajectories.
function forkLines(tree, all) {
  const forks = tree.forks.filter((fork) => all.includes(fork.trajectory));
  const lines = forks.slice(0, MOST_FORKS).map((fork) => forkFacts(tree, fork));
  return forks.length > MOST_FORKS ? [...lines, `and ${count(forks.length - MOST_FORKS, "more fork")}`] : lines;
}

// The forks that begin in a node, and those that stopped there.
function forksIn(tree, node) {
  const here = new Set(node.members.map((member) => member.join(" ")));
  return {
    begun: tree.forks.filter((fork) => here.has(`${fork.trajectory} -1`)),
    stopped: tree.forks.filter((fork) => fork.stopped && here.has(`${fork.trajectory} ${fork.steps - 1}`)),
  };
}

// Number of the way's step that leads to a node, 0 for none; of an edge, by both its ends.
function wayStep(tree, target, source = null) {
  const k = tree.way ? tree.way.nodes.indexOf(target) : -1;
  return k >= 0 && (source === null || source === (k ? tree.way.nodes[k - 1] : 0)) ? k + 1 : 0;
}

// Whether the way goes on from a node to the right, where its marks would be in the way.
function wayLeavesRight(tree, node) {
  const step = wayStep(tree, node.id);
  if (!tree.way || (node.id && !step) || step === tree.way.nodes.length) return false;
  const target = tree.way.nodes[step];
  const curve = tree.edges.find((edge) => edge.source === node.id && edge.target === target)?.way;
  return (curve ? curve[1][0] : tree.nodes.find((other) => other.id === target).x) > node.x + 0.02;
}

// "steps 1-3 from episode 2, step 4 from fork 6 of episode 0".
function stitches(tree) {
  const runs = [];
  tree.way.steps.forEach(([i], k) => {
    if (runs.length && runs.at(-1).i === i) runs.at(-1).last = k + 1;
    else runs.push({ i, first: k + 1, last: k + 1 });
  });
  const [i, t] = tree.way.steps.at(-1);
  if (runs.length === 1) return `All its steps are from ${inFull(tree, i)}${stepNumber(tree, i, t) > tree.way.steps.length ? ", without its detours" : ""}.`;
  return `Stitched: ${runs.map(({ i, first, last }) => `${first === last ? `step ${first}` : `steps ${first}–${last}`} from ${inFull(tree, i)}`).join(", ")}.`;
}

const WAYS = {
  imitate: "This run imitates it: its turns get an extra advantage in the policy loss.",
  only: "This run imitates it, and learns from nothing else.",
  surgical: "Where worse actions than its own were tried, this run prefers its thoughts to theirs (surgical loss).",
  none: "This run does not learn from it.",
};

function compared(tree) {
  const { steps, shortest } = tree.way;
  if (!shortest) return "No single episode is known to end so well.";
  const [least, i] = shortest;
  const single = forkOf(tree, i) ? `${inFull(tree, i)}, counted from the start` : who(tree, i);
  return steps.length < least ? `It is ${count(least - steps.length, "step")} shorter than the best single episode (${single}: ${count(least, "step")}).`
    : `It is not shorter than the best single episode (${single}: ${count(least, "step")}).`;
}

function showWay(tree) {
  if (!tree.way) {
    wayText.replaceChildren();
    return;
  }
  const { reward, steps, nodes } = tree.way;
  const button = ([i, t], k) => {
    const made = element("button", { type: "button" },
      `${shortened(textOf(tree, nodes[k], [i, t]).action, 50) || "(no action)"} (${inFull(tree, i)}, its step ${stepNumber(tree, i, t)})`);
    made.addEventListener("click", () => choose(nodes[k], true));
    return element("li", {}, made);
  };
  wayText.replaceChildren(
    element("p", {}, element("b", {}, "The way"), `: ${count(steps.length, "step")} from the start to reward ${decimal(reward)}. `, compared(tree), " ", stitches(tree)),
    data.ways ? element("p", { class: "missing" }, WAYS[data.ways]) : "",
    element("details", {}, element("summary", {}, "Its steps"), element("ol", { class: "ways" }, ...steps.map(button))),
  );
}

function showForks(tree) {
  if (!tree.forks.length) {
    forkText.replaceChildren();
    return;
  }
  const stopped = tree.forks.filter((fork) => fork.stopped).length;
  const ended = tree.forks.filter((fork) => !fork.stopped).map((fork) => decimal(tree.rewards[fork.trajectory]));
  forkText.replaceChildren(element("details", {},
    element("summary", {}, element("b", {}, count(tree.forks.length, "fork")),
      `: ${stopped} stopped in a known state, ${ended.length} ended${ended.length ? ` with reward${ended.length > 1 ? "s" : ""} ${ended.join(", ")}` : ""}`),
    forkList(tree, tree.forks)));
}

// A list to choose a fork from: its steps are then in the table of credits.
function forkList(tree, forks) {
  return element("ul", { class: "ways" }, ...forks.map((fork) => {
    const button = element("button", { type: "button" }, forkFacts(tree, fork));
    button.addEventListener("click", () => chooseTrajectory(fork.trajectory));
    return element("li", {}, button);
  }));
}
