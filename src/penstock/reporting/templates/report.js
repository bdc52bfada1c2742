"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const recall = () => { try { return localStorage.getItem("penstock-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("penstock-theme", theme); } catch { /* a page from disk may have no storage */ } };
  const button = document.querySelector(".theme");
  const apply = (theme) => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    button.textContent = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme];
  };
  let theme = themes.includes(recall()) ? recall() : "auto";
  apply(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    apply(theme);
    keep(theme);
  });

  const compare = (a, b, numeric) => numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const numeric = head.dataset.numeric === "true";
        const value = (row) => row.cells[column].dataset.value;
        const rows = [...body.rows].sort((one, other) => {
          const a = value(one), b = value(other);
          if (a === "" || b === "") return (a === "") - (b === "");  // what is missing stays last
          return compare(a, b, numeric) * (descending ? -1 : 1);
        });
        body.append(...rows);
        document.querySelector("#said").textContent =
          `${head.textContent.trim()}: sorted ${descending ? "descending" : "ascending"}`;
      });
    });
  }

  for (const choice of document.querySelectorAll("[data-choice]")) {
    choice.hidden = false;
    choice.addEventListener("change", (event) => {
      for (const shown of document.querySelectorAll(`[data-chosen-by="${choice.dataset.choice}"]`)) {
        shown.hidden = shown.dataset.value !== event.target.value;
      }
    });
  }
})();
