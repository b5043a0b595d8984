// The list of episodes with its filters; the steps of an episode are built when it is opened.
const PAGE = 25;
const list = document.getElementById("episode-list");

if (list) {
  const outcome = document.getElementById("episode-outcome");
  const kind = document.getElementById("episode-kind");
  const search = document.getElementById("episode-search");
  const more = document.getElementById("episode-more");
  const kinds = [...new Set(data.episodes.map((episode) => episode.kind))].filter(Boolean).sort();
  kind.append(...kinds.map((name) => element("option", { value: name }, name)));
  kind.closest("label").hidden = !kinds.length;
  const texts = data.episodes.map((episode) => [
    episode.task, episode.instruction, episode.start,
    ...episode.steps.flatMap((step) => [step.thought, step.action, step.reply, step.observation]),
  ].join("\n").toLowerCase());
  let found = [];

  const tag = (text, style = "") => element("span", { class: `tag ${style}` }, text);

  const row = (episode) => {
    const details = element("details", {}, element("summary", {},
      tag(episode.success ? "✓ solved" : "✗ not solved", episode.success ? "good" : "bad"),
      episode.iteration === null ? null : tag(`iteration ${episode.iteration}`),
      episode.kind ? tag(episode.kind) : null,
      tag(count(episode.steps.length, "step")),
      element("span", { class: "title" }, shortened(episode.instruction || episode.task, 140)),
    ));
    details.addEventListener("toggle", () => {
      if (details.open && !details.querySelector(".steps")) details.append(body(episode));
    });
    return details;
  };

  const body = (episode) => element("div", { class: "steps" },
    element("ul", { class: "facts" },
      element("li", {}, `task ${episode.task}`), element("li", {}, `sample ${episode.sample}`),
      element("li", {}, `reward ${decimal(episode.reward)}`), element("li", {}, episode.ended),
      ...Object.entries(episode.figures).map(([name, value]) => element("li", {}, `${name} ${value}`)),
      episode.error ? element("li", {}, `error: ${episode.error}`) : null,
    ),
    said({ ...(episode.start.includes(episode.instruction) ? {} : { task: episode.instruction }), start: episode.start }),
    element("ol", {}, ...episode.steps.map((step) => element("li", {},
      element("div", { class: "tags" },
        step.valid ? null : tag(`✗ invalid action${step.reason ? `: ${step.reason}` : ""}`, "bad"),
        step.modifies ? tag("changes the state", "good") : null,
        step.advantage === null ? null : tag(`advantage ${signed(step.advantage)}`),
        step.effect ? tag(`effect ${step.effect}`) : null,
      ),
      said({
        thought: step.thought, action: step.action, ...(step.reply ? { "whole reply": step.reply } : {}), observation: step.observation,
      }),
    ))),
  );

  const extend = () => {
    const shown = list.childElementCount;
    list.append(...found.slice(shown, shown + PAGE).map(row));
    more.hidden = list.childElementCount >= found.length;
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = data.episodes.filter((episode, k) => (!outcome.value || episode.success === (outcome.value === "yes"))
      && (!kind.value || episode.kind === kind.value) && words.every((word) => texts[k].includes(word)));
    document.getElementById("episode-count").textContent = `${found.length} of ${data.episodes.length}`;
    list.replaceChildren();
    extend();
  };

  outcome.addEventListener("change", filter);
  kind.addEventListener("change", filter);
  search.addEventListener("input", filter);
  more.addEventListener("click", extend);
  filter();
}
