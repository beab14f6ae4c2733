"use strict";

// Theme: follows the system until the button is pressed, then is remembered.
const root = document.documentElement;
const themeButton = document.getElementById("theme");
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

function nameTheme() {
  themeButton.querySelector("span").textContent = isDark() ? "Light theme" : "Dark theme";
}

themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("cameraready-theme", root.dataset.theme); } catch { /* a browser that keeps nothing */ }
  nameTheme();
});
systemDark.addEventListener("change", nameTheme);
nameTheme();

// Index: filter the cards by words, field and verdict.
const filters = document.getElementById("filters");
if (filters) {
  const cards = [...document.querySelectorAll("#cards > .card")];
  const [words, field, verdict] = ["words", "field", "verdict"].map((id) => document.getElementById(id));
  const filter = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards) {
      const fits = wanted.every((word) => card.dataset.words.includes(word))
        && (!field.value || card.dataset.field === field.value)
        && (!verdict.value || card.dataset.verdicts.split("|").includes(verdict.value));
      card.hidden = !fits;
      shown += fits;
    }
    const noun = cards.length === 1 ? "method" : "methods";
    document.getElementById("count").textContent =
      shown === cards.length ? `${shown} ${noun}` : `${shown} of ${cards.length} ${noun}`;
    document.getElementById("nothing").hidden = shown > 0;
  };
  filters.hidden = false;
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(filter));
  filter();
}

// Charts: drawn at the width of their container; colours are CSS variables, so that themes and print need no redrawing.
const FACET_SPACE = 250;

function fitted(spec, width, shrink = 0) {
  const copy = structuredClone(spec);
  const legend = copy.config.legend;
  legend.columns = Math.max(1, Math.floor(width / (copy.usermeta.longest * 7 + 44)));
  legend.labelLimit = width - 120;
  copy.config.axisY = { labelLimit: Math.max(90, Math.round(width * 0.34)) };
  if (copy.facet) {
    copy.columns = Math.max(1, Math.min(copy.columns, Math.floor(width / FACET_SPACE)));
    copy.spec.width = Math.max(90, Math.floor((width - 60) / copy.columns) - 24 - shrink);
  } else {
    copy.width = width;
    copy.autosize = { type: "fit-x", contains: "padding" };
  }
  return copy;
}

async function draw(canvas, spec) {
  const width = Math.floor(canvas.clientWidth);
  if (!width || canvas.dataset.width === String(width)) return;
  canvas.dataset.width = width;
  const options = { actions: false, renderer: "svg", tooltip: { disableDefaultStyle: true }, defaultStyle: false };
  let shrink = 0;
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const fit = fitted(spec, width, shrink);
    canvas.view?.finalize();
    canvas.view = (await vegaEmbed(canvas, fit, options)).view;
    // The container has the name and the page has the numbers as a table: single marks have nothing to say.
    const svg = canvas.querySelector("svg");
    svg.setAttribute("aria-hidden", "true");
    const over = svg.getAttribute("width") - width;
    if (!spec.facet || over <= 0) break;
    shrink += Math.ceil(over / fit.columns) + 1;
  }
}

async function drawAll() {
  for (const canvas of document.querySelectorAll(".canvas")) {
    const spec = JSON.parse(canvas.nextElementSibling.textContent);
    try {
      await draw(canvas, spec);
      let waiting;
      new ResizeObserver(() => {
        clearTimeout(waiting);
        waiting = setTimeout(() => draw(canvas, spec), 150);
      }).observe(canvas);
    } catch (error) {
      canvas.textContent = `This chart could not be drawn (${error.message}); the numbers are below.`;
      console.error(error);
    }
  }
  root.dataset.charts = "drawn";
}
if (typeof vegaEmbed !== "undefined") drawAll();

// Print: everything that is folded is opened for the paper, and closed again.
let unfolded = [];
addEventListener("beforeprint", () => {
  unfolded = [...document.querySelectorAll("details:not([open])")];
  for (const details of unfolded) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of unfolded) details.open = false;
});
