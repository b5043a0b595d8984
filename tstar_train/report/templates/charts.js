// Values under the pointer, or under the arrow keys, of every diagram.
for (const svg of document.querySelectorAll("svg[data-diagram]")) {
  const { iterations, points, lines } = data.diagrams[Number(svg.dataset.diagram)];
  const cursor = svg.querySelector(".cursor");
  let at = -1;

  const show = (index, clientY) => {
    at = Math.min(points.length - 1, Math.max(0, index));
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    cursor.setAttribute("x1", points[at]);
    cursor.setAttribute("x2", points[at]);
    cursor.setAttribute("visibility", "visible");
    const texts = lines.map((line) => `${line.label}: ${line.texts[at]}`);
    showTooltip([`iteration ${iterations[at]}`, ...texts], box.left + points[at] * scale, clientY ?? box.top + box.height / 3);
  };
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    hideTooltip();
  };

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let nearest = 0;
    points.forEach((point, k) => {
      if (Math.abs(point - x) < Math.abs(points[nearest] - x)) nearest = k;
    });
    show(nearest, event.clientY);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at < 0 && step < 0 ? points.length - 1 : at + step);
  });
}
