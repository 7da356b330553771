// Narrow the replies on which rules differ by a text that they contain.
(() => {
  const rows = [...document.querySelectorAll("#differing > tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const form = document.getElementById("filters");
  keepInAddress(form, "differences", () => {
    const search = new FormData(form).get("search").trim().toLowerCase();
    rows.forEach((row, place) => { row.hidden = !texts[place].includes(search); });
    document.getElementById("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} replies`;
  });
})();
