"use strict";
// Everything from the data goes into the page by textContent.
(() => {
  const block = document.getElementById("operating-data");
  const curves = JSON.parse(block.textContent);
  const form = document.getElementById("operating-choice");
  const { model, step, answer, level } = form.elements;
  const LEFT = 46;
  const TOP = 8;
  const SIDE = 240;
  let shown = null;

  const percent = (part, whole) => (whole === 0 ? "-" : `${((100 * part) / whole).toFixed(1)} %`);
  const across = (share) => LEFT + SIDE * share;
  const up = (share) => TOP + SIDE * (1 - share);

  function draw(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  }

  function fill(select, names) {
    const before = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(before)) select.value = before;
  }

  function axes(xLabel, yLabel) {
    const parts = [];
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      parts.push(draw("line", { class: "grid", x1: LEFT, x2: LEFT + SIDE, y1: up(share), y2: up(share) }));
      parts.push(draw("text", { class: "tick", x: LEFT - 7, y: up(share) + 4, "text-anchor": "end" }, String(100 * share)));
      parts.push(draw("text", { class: "tick", x: across(share), y: TOP + SIDE + 16, "text-anchor": "middle" }, String(100 * share)));
    }
    parts.push(draw("text", { class: "tick", x: LEFT + SIDE / 2, y: TOP + SIDE + 34, "text-anchor": "middle" }, xLabel));
    const middle = TOP + SIDE / 2;
    parts.push(draw("text", { class: "tick", x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})` }, yLabel));
    return parts;
  }

  function plot(id, labels, chance, points, places) {
    const line = points.filter((point) => point !== null).map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`);
    const parts = [...axes(...labels), draw("line", { class: "chance", x1: across(0), x2: across(1), y1: up(chance[0]), y2: up(chance[1]) })];
    parts.push(draw("polyline", { class: "line", points: line.join(" ") }));
    for (const [kind, place] of Object.entries(places)) {
      if (points[place] === null) continue;
      const [x, y] = points[place];
      parts.push(draw("circle", { class: kind, cx: across(x).toFixed(1), cy: up(y).toFixed(1), r: kind === "chosen" ? 5 : 8 }));
    }
    document.getElementById(id).replaceChildren(...parts);
  }

  function describe(place) {
    const [threshold, hits, alarms] = shown.levels[place];
    const { positive, negative } = shown;
    const where = threshold === null ? "Nothing is called" : `Called from ${(100 * threshold).toFixed(1)} % on`;
    const known = `${hits} of ${positive} cases with “${shown.answer}”, ${alarms} of ${negative} others`;
    const figures = [
      `sensitivity ${percent(hits, positive)}`,
      `specificity ${percent(negative - alarms, negative)}`,
      `PPV ${percent(hits, hits + alarms)}`,
      `NPV ${percent(negative - alarms, positive - hits + negative - alarms)}`,
    ];
    return `${where}: ${known}; ${figures.join(", ")}.`;
  }

  function show() {
    const place = Number(level.value);
    const { levels, positive, negative, chosen } = shown;
    const roc = levels.map(([, hits, alarms]) => [alarms / negative, hits / positive]);
    const pr = levels.map(([, hits, alarms]) => (hits + alarms === 0 ? null : [hits / positive, hits / (hits + alarms)]));
    const prevalence = positive / (positive + negative);
    plot("roc", ["1 − specificity, %", "sensitivity, %"], [0, 1], roc, { chosen, current: place });
    plot("pr", ["sensitivity (recall), %", "PPV (precision), %"], [prevalence, prevalence], pr, { chosen, current: place });
    document.getElementById("roc-title").textContent = `ROC curve of “${shown.answer}”, area ${shown.area.toFixed(3)}`;
    document.getElementById("pr-title").textContent = `Precision and recall of “${shown.answer}”, average precision ${shown.precision.toFixed(3)}`;
    const text = describe(place);
    const rule = shown.threshold === null ? "never" : `${(100 * shown.threshold).toFixed(1)} %`;
    document.getElementById("operating-figures").textContent = place === chosen ? `Chosen on validation (${rule}). ${text}` : text;
    level.setAttribute("aria-valuetext", text);
  }

  function choose(changed) {
    if (changed === model) fill(step, [...new Set(curves.filter((each) => each.model === model.value).map((each) => each.step))]);
    const own = curves.filter((each) => each.model === model.value && each.step === step.value);
    if (changed !== answer) fill(answer, own.map((each) => each.answer));
    shown = own.find((each) => each.answer === answer.value);
    level.max = shown.levels.length - 1;
    level.value = shown.chosen;
    show();
  }

  fill(model, [...new Set(curves.map((each) => each.model))].reverse());
  for (const select of [model, step, answer]) select.addEventListener("change", () => choose(select));
  level.addEventListener("input", show);
  document.getElementById("operating-chosen").addEventListener("click", () => {
    level.value = shown.chosen;
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  fill(step, [...new Set(curves.filter((each) => each.model === model.value).map((each) => each.step))]);
  step.selectedIndex = step.options.length - 1;
  choose(step);
  document.getElementById("operating-curves").hidden = false;
})();
