// Everything from records and replies goes into the page by textContent; box coordinates are numbers.
(() => {
  const data = JSON.parse(document.getElementById("reply-data").textContent);
  const filters = document.getElementById("filters");

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
    const label = make("span", { className: "label" }, mark(reply.a, "not scored"), lines);
    return [sheet(place), badge, label];
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
      ["answer read", [mark(reply.a, "not scored"), ` ${reply.answer ?? "none"}`]],
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

  browse({
    section: "replies",
    noun: "replies",
    items: [...data.records.keys()],
    perPage: 24,
    isWanted,
    card,
    title: (place) => data.records[place].id,
    view: (place) => [make("div", { className: "view" }, sheet(place)), reading(place)],
  });
})();
