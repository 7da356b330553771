// Everything from records and replies goes into the page by textContent; box coordinates are numbers.
(() => {
  const data = JSON.parse(document.getElementById("reply-data").textContent);
  const filters = document.getElementById("filters");
  const gallery = document.getElementById("gallery");
  const dialog = document.getElementById("case");
  const PER_PAGE = 24;
  let shown = [];
  let page = 0;
  let current = null;

  function draw(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== "") element.textContent = text;
    return element;
  }

  function percent(share) {
    return share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`;
  }

  function model() {
    return data.models[Number(filters.elements.model?.value ?? 0)];
  }

  // The picture fills the frame as the boxes' coordinates do, whatever the size of its file.
  function sheet(place) {
    const record = data.records[place];
    const isKnown = record.size[0] > 0; // the size of a question without boxes may be unknown
    const [width, height] = isKnown ? record.size : [1, 1];
    const layer = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
    const add = (boxes, kind) => {
      for (const [name, x1, y1, x2, y2] of boxes) {
        const box = draw("rect", { x: x1, y: y1, width: Math.max(0, x2 - x1), height: Math.max(0, y2 - y1), class: `box ${kind}` });
        box.append(draw("title", {}, `${name} (${kind})`));
        layer.append(box);
      }
    };
    add(record.boxes, "true");
    if (isKnown) add(model().replies[place].boxes, "predicted");
    const source = data.pictures[record.picture] ?? null;
    const picture = source === null ? null : make("img", { src: source, alt: "", loading: "lazy", decoding: "async" });
    const holder = make("div", { className: "sheet" }, picture, layer);
    const fit = () => (holder.style.aspectRatio = `${picture.naturalWidth} / ${picture.naturalHeight}`);
    holder.style.aspectRatio = `${width} / ${height}`;
    if (!isKnown && picture !== null) picture.addEventListener("load", fit);
    holder.style.maxWidth = `${Math.min(100, (100 * width) / height)}%`;
    return make("div", { className: "frame" }, holder);
  }

  function mark(score) {
    const [name, sign] = score === null ? ["open", "·"] : score === 1 ? ["right", "✓"] : score === 0 ? ["wrong", "✗"] : ["open", "~"];
    const text = score === null ? "not scored" : score === 1 ? "right" : score === 0 ? "wrong" : "partly right";
    return make("span", { className: `mark ${name}`, title: text, ariaLabel: text, role: "img" }, sign);
  }

  function card(place) {
    const record = data.records[place];
    const reply = model().replies[place];
    const lines = make(
      "span",
      {},
      make("span", { className: "asked" }, record.question),
      make("span", { className: "about" }, `${record.kind}${reply.v === null ? "" : `, V\u00a0${percent(reply.v)}`}`),
    );
    const badge = reply.formed === 0 ? make("span", { className: "badge" }, reply.text === null ? "no reply" : "not well formed") : null;
    const label = make("span", { className: "label" }, mark(reply.a), lines);
    const button = make("button", { type: "button", className: "case-card" }, sheet(place), badge, label);
    button.addEventListener("click", () => open(place));
    return make("li", {}, button);
  }

  function isWanted(place, wanted) {
    const record = data.records[place];
    const reply = model().replies[place];
    const answer = wanted.get("answer");
    if (wanted.get("kind") && wanted.get("kind") !== record.kind) return false;
    if (answer === "part" ? reply.a === null || reply.a === 0 || reply.a === 1 : answer && String(reply.a) !== answer) return false;
    if (wanted.get("passed") && String(reply.passed) !== wanted.get("passed")) return false;
    const formed = wanted.get("formed");
    if (formed === "missing" ? reply.text !== null : formed && (String(reply.formed) !== formed || reply.text === null)) return false;
    const search = wanted.get("search").trim().toLowerCase();
    return search === "" || record.id.toLowerCase().includes(search) || record.question.toLowerCase().includes(search);
  }

  function refresh() {
    const wanted = new FormData(filters);
    shown = [...data.records.keys()].filter((place) => isWanted(place, wanted));
    page = 0;
    document.getElementById("count").textContent = `${shown.length} of ${data.records.length} replies`;
    turn(0);
  }

  function turn(by) {
    const last = Math.max(0, Math.ceil(shown.length / PER_PAGE) - 1);
    page = Math.min(last, Math.max(0, page + by));
    gallery.replaceChildren(...shown.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map(card));
    document.getElementById("pages").hidden = last === 0;
    document.getElementById("page-place").textContent = `page ${page + 1} of ${last + 1}`;
    document.getElementById("back").disabled = page === 0;
    document.getElementById("forward").disabled = page === last;
  }

  function facts(pairs) {
    const list = make("dl", { className: "facts" });
    for (const [name, value] of pairs) list.append(make("dt", {}, name), make("dd", {}, ...(Array.isArray(value) ? value : [value])));
    return list;
  }

  function listed(boxes) {
    return boxes.length === 0 ? "none" : boxes.map(([name, ...corners]) => `${name} [${corners.join(", ")}]`).join("; ");
  }

  function reading(place) {
    const record = data.records[place];
    const reply = model().replies[place];
    const pairs = [["question", record.question]];
    if (record.choices.length > 0) pairs.push(["choices", make("span", {}, record.choices.join(", "))]);
    pairs.push(
      ["true answer", record.truth],
      ["answer read", [mark(reply.a), ` ${reply.answer ?? "none"}`]],
    );
    if (reply.v !== null || record.boxes.length + reply.boxes.length > 0) pairs.push(
      ["true boxes", listed(record.boxes)],
      ["boxes read", listed(reply.boxes)],
      ["mean IoU", percent(reply.v) + (reply.v === 0 && reply.formed === 0 && reply.boxes.length > 0 ? " (not well formed)" : "")],
      ["grounding", reply.passed === null ? "not scored" : reply.passed === 1 ? "passed" : "not passed"],
    );
    if (reply.problems.length > 0) {
      pairs.push(["form", make("ul", { className: "problems" }, ...reply.problems.map((text) => make("li", {}, text)))]);
    }
    const text = reply.text === null ? make("p", { className: "note" }, "There is no reply.") : make("pre", { className: "report" }, reply.text);
    return make("div", {}, facts(pairs), make("h4", {}, "Reply"), text);
  }

  function show(place) {
    current = place;
    document.getElementById("case-title").textContent = data.records[place].id;
    document.getElementById("case-place").textContent = `${shown.indexOf(place) + 1} of ${shown.length}`;
    document.getElementById("case-body").replaceChildren(make("div", { className: "view" }, sheet(place)), reading(place));
  }

  function printed(place) {
    const parts = [make("div", {}, sheet(place)), reading(place)];
    return make("article", {}, make("h3", {}, data.records[place].id), make("div", { className: "pair" }, ...parts));
  }

  function open(place) {
    show(place);
    if (!dialog.open) dialog.showModal();
    document.getElementById("case-body").scrollTop = 0;
  }

  function move(by) {
    show(shown[(shown.indexOf(current) + by + shown.length) % shown.length]);
    document.getElementById("case-body").scrollTop = 0;
  }

  document.getElementById("back").addEventListener("click", () => turn(-1));
  document.getElementById("forward").addEventListener("click", () => turn(1));
  document.getElementById("case-previous").addEventListener("click", () => move(-1));
  document.getElementById("case-next").addEventListener("click", () => move(1));
  document.getElementById("case-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  keepInAddress(filters, "replies", refresh);
  printWhole(() => data.records.map((_, place) => printed(place)));
})();
