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

/** Show what a click would show while the page is printed: details are open, and `sheets` fill the element `printed`. */
function printWhole(sheets = () => []) {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
    const printed = document.getElementById("printed");
    printed?.replaceChildren(...sheets());
    // A lazy picture is loaded once it is near the view, which these never are on the screen.
    for (const picture of printed?.querySelectorAll("img") ?? []) picture.loading = "eager";
  });
  window.addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
    document.getElementById("printed")?.replaceChildren();
  });
}
