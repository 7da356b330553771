"use strict";
// Of every page: its elements, its filters in the address, and its print.

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/**
 * Keep a form's filters in the address, as #SECTION&name=value, and call `refresh` when they change. Reload, Back and a
 * link that was sent restore them; links to sections keep them. What a filter has at first is not written.
 */
function keepInAddress(form, section, refresh) {
  const first = new FormData(form);
  let written = "";

  const read = () => {
    const [name, ...rest] = location.hash.slice(1).split("&");
    return [name, new URLSearchParams(rest.join("&"))];
  };
  const write = () => {
    const changed = [...new FormData(form)].filter(([name, value]) => first.get(name) !== value);
    return new URLSearchParams(changed).toString();
  };
  const go = (how, name) => history[how]("filters", "", `#${name}${written && "&"}${written}`);

  const take = (wanted) => {
    form.reset();
    for (const field of form.elements) {
      const value = wanted.get(field.name);
      if (value === null) continue;
      if (field.type === "radio" || field.type === "checkbox") field.checked = field.value === value;
      else if (field.type === "search" || [...field.options].some((option) => option.value === value)) field.value = value;
    }
    written = write();
    refresh();
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    written = write();
    go(event.target.type === "search" ? "replaceState" : "pushState", section);
    refresh();
  });
  window.addEventListener("hashchange", () => {
    const [name, wanted] = read();
    if (history.state === null && wanted.toString() === "" && name !== "") go("replaceState", name); // a link was clicked
    else take(wanted);
  });
  form.hidden = false;
  const [name, wanted] = read();
  take(wanted);
  if (written !== "") document.getElementById(name)?.scrollIntoView();
}

/** Open all details while the page is printed. */
function printWhole() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
}

/** The sign of a score: 1 or true, 0 or false, something between, or null, which is told as `unknown`. */
function mark(score, unknown) {
  let [name, sign, text] = ["open", "~", "partly right"];
  if (score === null) [sign, text] = ["·", unknown];
  else if (Number(score) === 1) [name, sign, text] = ["right", "✓", "right"];
  else if (Number(score) === 0) [name, sign, text] = ["wrong", "✗", "wrong"];
  return make("span", { className: `mark ${name}`, title: text, ariaLabel: text, role: "img" }, sign);
}

/**
 * Show items in the parts of the template's macro `gallery`: as cards on pages of `perPage`, narrowed by the filters, and
 * one by one in a dialog. `isWanted(item, FormData)` filters, `card(item)` gives the parts of a card and `view(item)`
 * those of the dialog, which has a `title(item)`; `opened` is called when a card is clicked.
 * Returns the function that shows an item in the dialog.
 */
function browse({ section, noun, items, perPage, isWanted, card, title, about = () => "", view, opened = () => {} }) {
  const part = (id) => document.getElementById(id);
  const filters = part("filters");
  const dialog = part("case");
  let shown = [];
  let page = 0;
  let current = null;

  function refresh() {
    const wanted = new FormData(filters);
    shown = items.filter((item) => isWanted(item, wanted));
    part("count").textContent = `${shown.length} of ${items.length} ${noun}`;
    part("nothing").hidden = shown.length > 0;
    turnTo(0);
  }

  function turnTo(number) {
    const last = Math.max(0, Math.ceil(shown.length / perPage) - 1);
    page = Math.min(last, Math.max(0, number));
    part("gallery").replaceChildren(...shown.slice(page * perPage, (page + 1) * perPage).map(cardOf));
    part("pages").hidden = last === 0;
    part("page-place").textContent = `page ${page + 1} of ${last + 1}`;
    part("back").disabled = page === 0;
    part("forward").disabled = page === last;
  }

  function cardOf(item) {
    const button = make("button", { type: "button", className: "case-card" }, ...card(item));
    button.addEventListener("click", () => {
      opened();
      show(item);
      if (!dialog.open) dialog.showModal();
      part("case-body").scrollTop = 0;
    });
    return make("li", {}, button);
  }

  function show(item) {
    current = item;
    part("case-title").textContent = title(item);
    part("case-about").textContent = about(item);
    part("case-place").textContent = `${shown.indexOf(item) + 1} of ${shown.length}`;
    part("case-body").replaceChildren(...view(item));
  }

  function move(by) {
    show(shown[(shown.indexOf(current) + by + shown.length) % shown.length]);
    part("case-body").scrollTop = 0;
  }

  part("back").addEventListener("click", () => turnTo(page - 1));
  part("forward").addEventListener("click", () => turnTo(page + 1));
  part("case-previous").addEventListener("click", () => move(-1));
  part("case-next").addEventListener("click", () => move(1));
  part("case-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  keepInAddress(filters, section, refresh);
  printWhole();
  return show;
}
