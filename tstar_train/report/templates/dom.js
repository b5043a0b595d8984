// What the other scripts build on. Text of models and environments only ever becomes text nodes and attribute values here:
// no innerHTML, no HTML parser.
const data = JSON.parse(document.getElementById("data").textContent);
const tooltip = document.getElementById("tooltip");

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

function element(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function decimal(value, digits = 2) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

function signed(value) {
  return value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + decimal(value);
}

function shortened(text, most) {
  const characters = Array.from(text.replace(/\s+/g, " ").trim());
  return characters.length <= most ? characters.join("") : characters.slice(0, Math.max(1, most - 1)).join("") + "…";
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function count(number, noun, plural = noun + "s") {
  return `${number} ${number === 1 ? noun : plural}`;
}

function showTooltip(lines, x, y) {
  tooltip.replaceChildren(...lines.map((line, k) => element(k ? "div" : "b", {}, line)));
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 14 + width > document.documentElement.clientWidth ? x - 14 - width : x + 14;
  const top = y + 14 + height > window.innerHeight ? y - 14 - height : y + 14;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});

// Thought, action and observation of one step, each with its name.
function said(parts) {
  return element("dl", { class: "said" }, ...Object.entries(parts).flatMap(([name, text]) => [
    element("dt", {}, name),
    text ? element("dd", { class: name.replace(/ /g, "-") }, text) : element("dd", { class: "none" }, "(none)"),
  ]));
}
