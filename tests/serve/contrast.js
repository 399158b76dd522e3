// Run inside the page: the visible texts with a contrast below 4.5 against the colour behind them (WCAG AA).
const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; }
  return [255, 255, 255]; };
const bad = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const e = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !e.checkVisibility() || e.closest(".skip, h1.quiet, svg")) continue;
  const a = luminance(parse(getComputedStyle(e).color)), b = luminance(ground(e));
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) bad.push([e.className || e.tagName, walker.currentNode.data.trim().slice(0, 30), contrast]);
}
return bad;
