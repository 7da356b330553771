// The view's pictures open in a dialog that can be zoomed and moved; runs once, on the element that holds the view.
const dialog = document.createElement("dialog");
dialog.className = "zoomed";
dialog.innerHTML =
  "<div class='tools'><b></b><label><input type='checkbox' checked> map</label>" +
  "<button type='button' value='out' aria-label='smaller'>−</button><button type='button' value='in' aria-label='larger'>+</button>" +
  "<button type='button' value='fit'>Fit</button><button type='button' value='close'>Close</button></div>" +
  "<div class='stage' tabindex='0' role='group' aria-label='picture; + and - zoom, arrow keys move'>" +
  "<div class='sheet'><img class='detail'><img class='layer' alt=''></div></div>";
document.body.append(dialog);
const find = (selector) => dialog.querySelector(selector);
const stage = find(".stage");
const sheet = find(".sheet");
const fingers = new Map();
let scale = 1;
let x = 0;
let y = 0;

function place() {
  const reach = (size) => (size * (scale - 1)) / 2; // no further than to the picture's edge
  x = Math.max(-reach(sheet.offsetWidth), Math.min(reach(sheet.offsetWidth), x));
  y = Math.max(-reach(sheet.offsetHeight), Math.min(reach(sheet.offsetHeight), y));
  sheet.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
}

// Around a point of the window; around the middle without one.
function zoom(factor, at = null) {
  const next = Math.max(1, Math.min(12, scale * factor));
  if (at !== null) {
    const box = stage.getBoundingClientRect();
    const [left, top] = [at.clientX - box.x - box.width / 2, at.clientY - box.y - box.height / 2];
    x = left - ((left - x) * next) / scale;
    y = top - ((top - y) * next) / scale;
  }
  scale = next;
  place();
}

function fit() {
  [scale, x, y] = [1, 0, 0];
  place();
}

function move(event) {
  if (!fingers.has(event.pointerId)) return;
  const before = fingers.get(event.pointerId);
  const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
  fingers.set(event.pointerId, event);
  if (other !== undefined) {
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    zoom(apart(event) / Math.max(apart(before), 1), event);
    return;
  }
  x += event.clientX - before.clientX;
  y += event.clientY - before.clientY;
  place();
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("button.zoom");
  if (button === null) return;
  const { layer, name } = button.dataset;
  find("b").textContent = name;
  find(".detail").src = button.closest(".reading").dataset.detail;
  find(".detail").alt = name;
  find(".layer").hidden = layer === "" || !find("input").checked;
  find(".layer").src = layer || "data:,";
  find("label").hidden = layer === "";
  dialog.setAttribute("aria-label", name);
  dialog.showModal();
  fit();
});
find("input").addEventListener("change", (event) => { find(".layer").hidden = !event.target.checked; });
dialog.addEventListener("click", (event) => {
  const does = { in: () => zoom(1.5), out: () => zoom(1 / 1.5), fit, close: () => dialog.close() };
  does[event.target.value]?.();
});
stage.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY / 400), event);
}, { passive: false });
stage.addEventListener("pointerdown", (event) => {
  stage.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, event);
});
stage.addEventListener("pointermove", move);
for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, (event) => fingers.delete(event.pointerId));
stage.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
  if (event.key === "+" || event.key === "=") zoom(1.5);
  else if (event.key === "-") zoom(1 / 1.5);
  else if (event.key === "0") fit();
  else if (step !== undefined) {
    event.preventDefault();
    [x, y] = [x + step[0], y + step[1]];
    place();
  }
});
