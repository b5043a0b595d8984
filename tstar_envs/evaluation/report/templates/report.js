"use strict";
(() => {
  // Text of models and environments only ever becomes text nodes here: no innerHTML, no HTML parser.
  const data = JSON.parse(document.getElementById("data").textContent);
  const get = (id) => document.getElementById(id);
  const browser = get("browser");
  if (!browser || !data.settings.length) return;

  const text = (place) => data.texts[place];
  const element = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== ""));
    return node;
  };
  const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

  // Fills a select; keeps what was chosen where it is still there.
  const fill = (select, options, wanted = select.value) => {
    select.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
    const values = options.map(([value]) => String(value));
    select.value = values.includes(String(wanted)) ? String(wanted) : values[0] ?? "";
    const label = select.closest("label");
    if (label && select.id.match(/^(sample|attempt)/)) label.hidden = options.length < 2;
  };

  const setting = () => data.settings[Number(get("setting").value)];
  const task = () => setting().tasks[Number(get("task").value)];
  const episodesOf = (agent) => task().episodes.filter((episode) => episode.agent === Number(agent));
  const episode = (side) => episodesOf(get(`agent-${side}`).value).find((one) => one.sample === Number(get(`sample-${side}`).value));
  const attempt = (side) => episode(side)?.attempts[Number(get(`attempt-${side}`).value)];

  const solved = (one) => one.outcome === "solved";
  const mark = (one) => {
    const last = one.attempts.at(-1);
    return solved(last) ? "✓" : last.ended === "error" ? "!" : "✗";
  };

  const chooseTask = (wanted) => {
    const tasks = setting().tasks;
    fill(get("task"), tasks.map((one, k) => [k, `${one.name}  ${one.episodes.map((e) => `${mark(e)} ${data.agents[e.agent]}`).join(", ")}`]), wanted);
    const place = Number(get("task").value);
    get("previous").disabled = place === 0;
    get("next").disabled = place === tasks.length - 1;
    const agents = [...new Set(task().episodes.map((one) => one.agent))];
    const options = agents.map((agent) => [agent, data.agents[agent]]);
    fill(get("agent-a"), options);
    const other = agents.find((agent) => String(agent) !== get("agent-a").value);
    const kept = get("agent-b").value;
    const usable = kept !== "" && agents.includes(Number(kept)) && (kept !== get("agent-a").value || other === undefined);
    fill(get("agent-b"), options, usable ? kept : other ?? agents[0]);
    chooseSample("a");
    chooseSample("b", get("agent-a").value === get("agent-b").value);
  };

  const chooseSample = (side, another = false) => {
    const samples = episodesOf(get(`agent-${side}`).value).map((one) => one.sample);
    fill(get(`sample-${side}`), samples.map((sample) => [sample, String(sample)]), another ? samples[1] ?? samples[0] : undefined);
    chooseAttempt(side);
  };

  const chooseAttempt = (side) => {
    const attempts = episode(side).attempts;
    const last = attempts.length - 1;
    fill(get(`attempt-${side}`), attempts.map((one, k) => [k, `${k + 1}${k === last ? " (the result)" : ""}`]), last);
  };

  const tag = (words, style) => element("span", { class: `tag ${style}` }, words);
  const outcomeTag = (one) => tag(`${solved(one) ? "✓" : "✗"} ${one.outcome}`, solved(one) ? "good" : "bad");
  const facts = (one) => [
    outcomeTag(one), ` reward ${one.reward === null ? "–" : one.reward.toFixed(3)}, ${one.ended} after ${count(one.steps.length + one.more, "step")}`,
  ];

  const describe = (side) => {
    const one = attempt(side);
    const reflections = episode(side).attempts.slice(0, Number(get(`attempt-${side}`).value)).map((earlier) => earlier.reflection);
    get(`outcome-${side}`).replaceChildren(
      ...facts(one),
      ...(one.error >= 0 ? [element("span", { class: "said bad" }, text(one.error))] : []),
      ...reflections.flatMap((place, k) => (place < 0 ? [] : [
        element("span", { class: "said" }, element("b", {}, `After attempt ${k + 1} it noted for itself: `), text(place)),
      ])),
    );
  };

  const described = (parts) => element("dl", {}, ...parts.filter(([, place]) => place !== undefined).flatMap(([name, place, style]) => [
    element("dt", {}, name), element("dd", { class: style ?? null }, text(place) || "(nothing)"),
  ]));

  const cell = (side, one, k) => {
    const who = element("p", { class: "who" }, `${side.toUpperCase()}: `, element("bdi", {}, data.agents[episode(side).agent]));
    const step = one.steps[k];
    if (!step) {
      if (k > one.steps.length) return element("div", { class: "cell empty" });
      const more = one.more ? element("p", {}, `${count(one.more, "more step")} left out`) : null;
      return element("div", { class: "cell end" }, who, more, element("p", {}, "End: ", ...facts(one)));
    }
    return element("div", { class: "cell" }, who,
      step.x === undefined ? null : element("p", {}, tag(`✗ invalid: ${text(step.x)}`, "bad")),
      described([
        ["Thought", step.t], ["Action", step.a, "action"], ["Whole reply", step.r],
        ...(step.n ?? []).map((place) => ["It also asked its model", place]), ["Observation", step.o, "observation"],
      ]));
  };

  // The first step at which the two do not do the same; -1 where they never part.
  const parting = (one, two) => {
    const key = (step) => (step ? (text(step.a) ? step.a : `reply ${step.r}`) : null);
    const most = Math.max(one.steps.length, two.steps.length);
    for (let k = 0; k < most; k += 1) if (key(one.steps[k]) !== key(two.steps[k])) return k;
    return -1;
  };

  const does = (step) => (step ? `“${text(step.a) || "no action that could be read"}”` : "is at its end");

  const show = () => {
    const [a, b] = [attempt("a"), attempt("b")];
    const [first, second] = [episode("a"), episode("b")];
    describe("a");
    describe("b");
    const starts = first.start === second.start ? [first] : [first, second];
    get("start").replaceChildren(...starts.map((one, k) => element("div", { class: "cell" },
      element("h3", {}, starts.length > 1 ? `Start of ${"AB"[k]}` : "Start"),
      described([...(text(one.start).includes(text(one.task)) ? [] : [["Task", one.task]]), ["Observation", one.start, "observation"]]))));
    get("start").className = starts.length > 1 ? "pair" : "";
    const at = parting(a, b);
    const rows = Array.from({ length: Math.max(a.steps.length, b.steps.length) + 1 }, (_, k) => element("li",
      { class: k === at ? "parted" : null, tabindex: k === at ? "-1" : null },
      element("h3", {}, k < Math.max(a.steps.length, b.steps.length) ? `Step ${k + 1} ` : "End ", k === at ? element("span", { class: "tag part" }, "here they part") : ""),
      element("div", { class: "pair" }, cell("a", a, k), cell("b", b, k))));
    get("steps").replaceChildren(...rows);
    const same = first === second && a === b;
    get("parting").textContent = same ? "Both sides show the same episode."
      : at < 0 ? "They do the same at every step."
      : `They part at step ${at + 1}: A ${does(a.steps[at])}, B ${does(b.steps[at])}.`;
    get("to-parting").hidden = at < 0;
    reveal(rows[Math.max(0, at)], at < 0);
  };

  // Moves the box, not the page: the reader of another part is left where they are.
  const reveal = (row, top) => {
    const box = get("walk");
    box.scrollTop = top ? 0 : row.offsetTop - 8;
  };

  const move = (by) => {
    chooseTask(Number(get("task").value) + by);
    show();
  };

  const chooseSetting = () => {
    chooseTask(0);
    show();
  };

  fill(get("setting"), data.settings.map((one, k) => [k, one.name]));
  get("setting").addEventListener("change", chooseSetting);
  get("task").addEventListener("change", () => move(0));
  get("previous").addEventListener("click", () => move(-1));
  get("next").addEventListener("click", () => move(1));
  for (const side of ["a", "b"]) {
    get(`agent-${side}`).addEventListener("change", () => { chooseSample(side); show(); });
    get(`sample-${side}`).addEventListener("change", () => { chooseAttempt(side); show(); });
    get(`attempt-${side}`).addEventListener("change", show);
  }
  get("to-parting").addEventListener("click", () => {
    const row = document.querySelector(".parted");
    reveal(row, false);
    row.focus({ preventScroll: true });
    get("walk").scrollIntoView({ block: "nearest" });
  });
  browser.hidden = false;
  chooseSetting();
})();
