// What the page adds with JavaScript: lines between the lists, history, keys, the theme and a link to copy. All lists and
// explanations are in the HTML.
"use strict";

const get = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const set = (name, value) => { try { localStorage.setItem(name, value); } catch { /* storage is off */ } };

// Theme: the system's, unless the reader chose one.
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const button = document.getElementById("theme");
function showTheme() {
  if (!button) return;
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-pressed", String(isDark()));
  button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
  button.hidden = false;
}
function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  set("theme", root.dataset.theme);
  showTheme();
}
if (["dark", "light"].includes(get("theme"))) root.dataset.theme = get("theme");
showTheme();
button?.addEventListener("click", toggleTheme);

// History: the last queries, on this machine only.
const MOST = 30;
function history() {
  try { const found = JSON.parse(get("history") || "[]"); return Array.isArray(found) ? found.filter((q) => typeof q === "string") : []; }
  catch { return []; }
}
const query = new URLSearchParams(location.search).get("q");
if (query && query.trim()) set("history", JSON.stringify([query, ...history().filter((q) => q !== query)].slice(0, MOST)));
const list = document.getElementById("history");
for (const q of list ? history() : []) {
  const option = document.createElement("option");
  option.value = q;
  list.append(option);
}
const recent = document.getElementById("recent");
if (recent && history().length) {
  for (const q of history().slice(0, 10)) {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = "/?" + new URLSearchParams({ q });
    link.textContent = q;
    item.append(link);
    recent.append(item);
  }
  document.getElementById("recents").hidden = false;
}

// Empty fields and defaults stay out of the address.
const form = document.querySelector("form[role=search]");
form?.addEventListener("submit", () => {
  for (const field of form.elements) {
    const same = field instanceof HTMLSelectElement && ((field.name === "hits" && field.value === "10") ||
      (field.name === "mode" && field.value === "hybrid") || (field.name === "index" && field.selectedIndex === 0));
    if (field.name && field.name !== "q" && (!field.value || same)) field.disabled = true;
  }
});
addEventListener("pageshow", () => { for (const field of form ? form.elements : []) field.disabled = false; });
for (const field of form ? form.querySelectorAll("select") : []) {
  field.addEventListener("change", () => { if (form.elements.q.value.trim()) form.requestSubmit(); });
}

// A link to this state.
const copy = document.getElementById("copy");
if (copy && navigator.clipboard && query) {
  copy.hidden = false;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy link"; }, 1500);
  });
}

// Lines between the places of a document in neighbouring lists.
const columns = document.getElementById("columns");
const SVG = "http://www.w3.org/2000/svg";
const lines = document.createElementNS(SVG, "svg");
lines.setAttribute("class", "links");
lines.setAttribute("aria-hidden", "true");
function places(section) {
  const frame = columns.getBoundingClientRect(), found = new Map();
  for (const item of section.querySelectorAll("[data-docid]")) {
    const head = (item.querySelector(".head") || item).getBoundingClientRect(), box = item.getBoundingClientRect();
    found.set(item.dataset.docid, { left: box.left - frame.left, right: box.right - frame.left, y: head.top - frame.top + head.height / 2 });
  }
  return found;
}
function draw() {
  lines.replaceChildren();
  const sections = [...columns.querySelectorAll(".list")].filter((s) => s.offsetParent !== null);
  for (let i = 0; i + 1 < sections.length; i++) {
    const from = places(sections[i]), to = places(sections[i + 1]);
    const side = [sections[i], sections[i + 1]].find((s) => s.classList.contains("side"));
    for (const [docid, a] of from) {
      const b = to.get(docid);
      if (!b) continue;
      const path = document.createElementNS(SVG, "path"), middle = (a.right + b.left) / 2;
      path.setAttribute("d", `M${a.right + 4} ${a.y}C${middle} ${a.y} ${middle} ${b.y} ${b.left - 4} ${b.y}`);
      path.setAttribute("class", side?.classList.contains("dense") ? "dense" : side?.classList.contains("impact") ? "impact" : "");
      path.dataset.docid = docid;
      lines.append(path);
    }
  }
}
function near(docid, on) {
  for (const item of columns.querySelectorAll("[data-docid]")) if (item.dataset.docid === docid) item.classList.toggle("near", on);
}
if (columns) {
  columns.prepend(lines);
  new ResizeObserver(draw).observe(columns);
  let drawing = 0;
  addEventListener("scroll", () => { cancelAnimationFrame(drawing); drawing = requestAnimationFrame(draw); }, { passive: true });
  draw();
  for (const item of columns.querySelectorAll("li[data-docid]")) {
    for (const [event, on] of [["pointerenter", true], ["pointerleave", false], ["focusin", true], ["focusout", false]]) {
      item.addEventListener(event, () => near(item.dataset.docid, on));
    }
  }
}

// Keys.
const cards = () => [...document.querySelectorAll(".main .card")];
function step(by) {
  const all = cards(), at = all.indexOf(document.activeElement?.closest?.(".card"));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const open of document.querySelectorAll(".badge[open]")) { open.open = false; open.querySelector("summary").focus(); }
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const card = document.activeElement?.closest?.(".card");
  if (event.key === "/") { event.preventDefault(); form?.elements.q.select(); form?.elements.q.focus(); }
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "o" && card) { const why = card.querySelector(".why"); why.open = !why.open; }
  else if (event.key === "t") toggleTheme();
});
addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".badge[open]")) if (!open.contains(event.target)) open.open = false;
});
