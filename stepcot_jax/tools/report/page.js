// Everything from the data goes into the page by textContent, or by src where it is one of our own pictures.
(() => {
  const data = JSON.parse(document.getElementById("case-data").textContent);
  const filters = document.getElementById("filters");
  const NOT_ANNOTATED = -100;
  const last = data.steps.length - 1;
  let mapped = last;
  let isMapVisible = true;

  function answerText(step, label) {
    return label === NOT_ANNOTATED ? "not annotated" : data.steps[step].options[label];
  }

  // null where nobody annotated what would be judged.
  function isRight(entry, judged) {
    const steps = judged === "chain" ? data.steps.keys() : [Number(judged)];
    let found = null;
    for (const step of steps) {
      if (entry.truth[step] === NOT_ANNOTATED) continue;
      if (entry.truth[step] !== entry.answers[step]) return false;
      found = true;
    }
    return found;
  }

  function isWanted(entry, wanted) {
    const right = isRight(entry, wanted.get("judged"));
    if (wanted.get("result") === "right" && right !== true) return false;
    if (wanted.get("result") === "wrong" && right !== false) return false;
    if (wanted.has("inconsistent") && entry.inconsistent === "") return false;
    const diagnosis = wanted.get("diagnosis");
    return diagnosis === "any" || entry.truth[last] === Number(diagnosis);
  }

  function picture(entry, alt) {
    if (entry.picture === null) return make("div", { className: "picture missing" }, "no picture");
    return make("img", { className: "picture", src: entry.picture, alt, decoding: "async" });
  }

  function card(entry) {
    const right = isRight(entry, filters.elements.judged.value);
    const truth = answerText(last, entry.truth[last]);
    const answer = answerText(last, entry.answers[last]);
    const lines = [make("span", { className: "truth" }, truth)];
    if (truth !== answer) lines.push(make("span", { className: "answer" }, `read as ${answer}`));
    const label = make("span", { className: "label" }, mark(right, "not annotated"), make("span", {}, ...lines));
    const badge = entry.inconsistent === "" ? null : make("span", { className: "badge" }, "never together");
    return [picture(entry, ""), badge, label];
  }

  // From no colour to orange to pale yellow, more opaque where the map is stronger.
  function drawMap(canvas, map) {
    const bytes = Uint8Array.from(atob(map.bytes), (character) => character.charCodeAt(0));
    const image = new ImageData(map.width, map.height);
    bytes.forEach((value, place) => {
      const part = value / 255;
      image.data.set([255, 60 + 180 * part, 30 + 130 * part * part, 190 * Math.sqrt(part) * part], 4 * place);
    });
    canvas.width = map.width;
    canvas.height = map.height;
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function view(entry) {
    const frame = make("div", { className: "frame" }, picture(entry, `Radiograph ${entry.name}`));
    if (entry.maps === null || entry.picture === null) return make("div", { className: "view" }, frame);
    const canvas = make("canvas", { className: "map", ariaHidden: "true", hidden: !isMapVisible });
    drawMap(canvas, entry.maps[mapped]);
    frame.append(canvas);
    const box = make("input", { type: "checkbox", checked: isMapVisible });
    box.addEventListener("change", () => {
      isMapVisible = box.checked;
      canvas.hidden = !isMapVisible;
    });
    const about = make("label", { className: "toggle" }, box, ` Map of “${data.steps[mapped].name}”`);
    return make("div", { className: "view" }, frame, about, make("p", { className: "note" }, entry.claims[mapped] ?? ""));
  }

  function confidence(entry, step) {
    const share = entry.confidences[step];
    const fill = make("span", { className: "fill" });
    fill.style.width = `${(100 * share).toFixed(1)}%`;
    const texts = entry.sets[step].map((label) => answerText(step, label));
    const all = texts.length === data.steps[step].options.length;
    const set = make("span", { className: "set" }, all ? "set: any answer" : `set: ${texts.join(", ")}`);
    return [make("span", { className: "number" }, `${(100 * share).toFixed(0)} %`), make("span", { className: "bar" }, fill), set];
  }

  function stepName(entry, step) {
    const name = data.steps[step].name;
    if (entry.maps === null) return name;
    const button = make("button", { type: "button", className: "pick" }, name);
    button.setAttribute("aria-pressed", String(step === mapped));
    button.title = "show this step's map";
    button.addEventListener("click", () => {
      mapped = step;
      isMapVisible = true;
      show(entry);
      document.querySelectorAll(".pick")[step].focus();
    });
    return button;
  }

  function chain(entry) {
    const header = make("tr", {}, ...["Step", "Truth", "Answer", "Confidence"].map((text) => make("th", { scope: "col" }, text)));
    const rows = data.steps.map((_, step) => {
      const right = entry.truth[step] === NOT_ANNOTATED ? null : entry.truth[step] === entry.answers[step];
      return make(
        "tr",
        { className: step === mapped && entry.maps !== null ? "mapped" : "" },
        make("th", { scope: "row" }, stepName(entry, step)),
        make("td", {}, answerText(step, entry.truth[step])),
        make("td", {}, mark(right, "not annotated"), " ", answerText(step, entry.answers[step])),
        make("td", { className: "confidence" }, ...confidence(entry, step)),
      );
    });
    return make("table", { className: "chain" }, make("thead", {}, header), make("tbody", {}, ...rows));
  }

  function reading(entry) {
    const warning = entry.inconsistent === "" ? null : make("p", { className: "warning" }, `Never together in training: ${entry.inconsistent}`);
    const report = entry.report === "" ? make("p", { className: "note" }, "This case has no report.") : make("pre", { className: "report" }, entry.report);
    return make("div", { className: "reading" }, warning, chain(entry), make("h4", {}, "Report"), report);
  }

  const show = browse({
    section: "cases",
    noun: "cases",
    items: data.cases,
    perPage: 24,
    isWanted,
    card,
    title: (entry) => entry.name,
    about: (entry) => entry.about,
    view: (entry) => [view(entry), reading(entry)],
    opened: () => {
      mapped = last;
    },
  });
})();
