"use strict";

/** A form with its answers as the file that goes back: one row a question, as in the CSV form. */
function writeAnswers(form, answers) {
  const rows = form.rows.map((row) => row.start + (answers.get(row.name) ?? ""));
  return "\ufeff" + [form.header, ...rows].join("\r\n") + "\r\n";
}

/** The answers of a file that writeAnswers made of the same form; null where it is of another or was changed. */
function readAnswers(form, text) {
  const lines = text.replace(/^\ufeff/, "");
  const answers = new Map();
  let place = 0;
  const pass = (expected) => {
    const fits = lines.startsWith(expected, place);
    place += expected.length;
    return fits;
  };
  if (!pass(form.header + "\r\n")) return null;
  for (const row of form.rows) {
    if (!pass(row.start)) return null;
    const end = lines.indexOf("\r\n", place);
    const answer = end < 0 ? null : lines.slice(place, end);
    if (answer === null || (answer !== "" && !row.answers.includes(answer))) return null;
    if (answer !== "") answers.set(row.name, answer);
    place = end + 2;
  }
  return place === lines.length ? answers : null;
}

/** Place of the first case with an open question at or after one, going around; -1 where there is none. */
function nextOpen(form, answers, from) {
  const count = form.cases.length;
  const isOpen = (name) => !answers.has(name);
  for (let step = 0; step < count; step += 1) {
    const place = (from + step) % count;
    if (form.cases[place].some(isOpen)) return place;
  }
  return -1;
}

function start(page, storage) {
  const find = (id) => page.getElementById(id);
  const form = JSON.parse(find("form").textContent);
  const sections = [...page.querySelectorAll("section.case")];
  const pictures = [...page.querySelectorAll(".picture img")];
  const radios = [...page.querySelectorAll("input[type=radio]")];
  let answers = new Map();
  let shown = 0;
  let isSaved = true;

  const say = (text) => { find("message").textContent = text; };
  const numOpen = () => form.rows.length - answers.size;

  const refresh = () => {
    const done = form.cases.filter((names) => names.every((name) => answers.has(name))).length;
    find("progress").textContent = `${done} of ${form.cases.length} cases are complete`;
  };

  const show = (place) => {
    sections[shown].hidden = true;
    shown = place;
    sections[shown].hidden = false;
    find("case").value = String(shown);
    find("previous").disabled = shown === 0;
    find("next").disabled = shown === sections.length - 1;
    for (const field of sections[shown].querySelectorAll("fieldset")) field.classList.remove("open");
    window.scrollTo(0, 0);
  };

  const keep = () => {
    // A browser may refuse to store for files; the answers then live until the page is closed, which it warns of.
    try {
      storage().setItem(form.id, JSON.stringify([...answers]));
    } catch {
      return;
    }
  };

  const take = (found) => {
    answers = found;
    for (const radio of radios) radio.checked = answers.get(radio.name) === radio.value;
    refresh();
  };

  const restore = () => {
    try {
      const known = new Map(form.rows.map((row) => [row.name, row.answers]));
      const kept = JSON.parse(storage().getItem(form.id) ?? "[]");
      take(new Map(kept.filter(([name, answer]) => known.get(name)?.includes(answer))));
      if (answers.size > 0) say(`${answers.size} answers were kept by this browser.`);
    } catch {
      take(new Map());
    }
  };

  const save = () => {
    const link = page.createElement("a");
    link.href = URL.createObjectURL(new Blob([writeAnswers(form, answers)], { type: "text/csv" }));
    link.download = form.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    isSaved = true;
    say(numOpen() === 0
      ? `Complete: send ${form.file} back.`
      : `${form.file} is saved; ${numOpen()} answers are missing. Open it here to go on.`);
  };

  const open = async (file) => {
    const found = readAnswers(form, await file.text());
    if (found === null) {
      say(`${file.name} is not of this form, or was changed by another program.`);
      return;
    }
    take(found);
    keep();
    say(`${found.size} answers from ${file.name}.`);
  };

  const goToOpen = () => {
    const place = nextOpen(form, answers, shown);
    if (place < 0) {
      say("Every question is answered: save the answers.");
      return;
    }
    show(place);
    for (const field of sections[place].querySelectorAll("fieldset")) {
      field.classList.toggle("open", !answers.has(field.dataset.name));
    }
  };

  const adjust = () => {
    const filter = `brightness(${find("brightness").value}%) contrast(${find("contrast").value}%)`;
    for (const picture of pictures) picture.style.filter = filter;
  };

  page.addEventListener("change", (event) => {
    const radio = event.target;
    if (radio.type !== "radio") return;
    answers.set(radio.name, radio.value);
    radio.closest("fieldset").classList.remove("open");
    isSaved = false;
    keep();
    refresh();
    say("");
  });
  find("previous").addEventListener("click", () => show(shown - 1));
  find("next").addEventListener("click", () => show(shown + 1));
  find("case").addEventListener("change", () => show(Number(find("case").value)));
  find("open-question").addEventListener("click", goToOpen);
  find("save").addEventListener("click", save);
  find("load").addEventListener("change", () => { if (find("load").files.length) open(find("load").files[0]); });
  find("brightness").addEventListener("input", adjust);
  find("contrast").addEventListener("input", adjust);
  find("reset").addEventListener("click", () => {
    find("brightness").value = "100";
    find("contrast").value = "100";
    adjust();
  });
  window.addEventListener("beforeunload", (event) => { if (!isSaved) event.preventDefault(); });

  restore();
  const first = nextOpen(form, answers, 0);
  show(first < 0 ? 0 : first);
}

if (typeof document !== "undefined") start(document, () => localStorage);
