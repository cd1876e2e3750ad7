// Draws the charts of the report as SVG, and lets tables be sorted. All text goes in as text: nothing from a file is ever markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 3", "6 2 1 2 1 2"];

// Colours repeat after eight series, and then the dashes are others.
const dash = (k) => DASHES[(k + Math.floor(k / 8)) % 8];

function make(name, attributes = {}, parent = null) {
  const element = parent instanceof SVGElement || name === "svg" ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else element.setAttribute(key, value);
  }
  if (parent) parent.append(element);
  return element;
}

function shown(value, percent) {
  if (percent) return `${+(100 * value).toPrecision(4)}%`;
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e6) ? value.toExponential(1) : String(+value.toPrecision(4));
}

// A scale from data to pixels, with the places of its ticks.
function scale(values, from, to, log) {
  let low = Infinity, high = -Infinity;
  for (const v of values) low = Math.min(low, v), high = Math.max(high, v);
  if (!(low < high)) [low, high] = log ? [low / 2, low * 2] : [low - 0.5 * Math.abs(low) - 0.01, low + 0.5 * Math.abs(low) + 0.01];
  const ticks = [];
  if (log) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), every = Math.max(1, Math.ceil((last - first) / 7));
    for (let power = first; power <= last; power += every) ticks.push(10 ** power);
    const between = last - first <= 1 ? [2, 3, 4, 5, 6, 7, 8, 9] : last - first <= 2 ? [2, 5] : [];
    for (let power = first; power < last; power++) for (const m of between) ticks.push(m * 10 ** power);
    const a = Math.log10(low), b = Math.log10(high);
    return { place: (v) => from + ((Math.log10(v) - a) / (b - a)) * (to - from), ticks: ticks.filter((t) => t >= low && t <= high) };
  }
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  low = Math.floor(low / step) * step, high = Math.ceil(high / step) * step;
  for (let k = Math.round(low / step); k * step <= high + step / 1e6; k++) ticks.push(+(k * step).toPrecision(12));
  return { place: (v) => from + ((v - low) / (high - low)) * (to - from), ticks };
}

function marker(parent, index, x, y, attributes) {
  const shapes = [
    () => make("circle", { cx: x, cy: y, r: 4, ...attributes }, parent),
    () => make("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, "stroke-width": 2, ...attributes, fill: "none", stroke: attributes.fill }, parent),
    () => make("path", { d: `M${x} ${y - 5}l5 9h-10z`, ...attributes }, parent),
    () => make("rect", { x: x - 4, y: y - 4, width: 8, height: 8, ...attributes }, parent),
  ];
  return shapes[index % shapes.length]();
}

function draw(figure) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const state = { hidden: new Set(), xLog: Boolean(spec.xLog), yLog: Boolean(spec.yLog), at: -1 };
  const style = (k) => spec.series[k].style ?? k;
  const colour = (k) => `var(--s${style(k) % 8})`;
  const top = spec.yTop ?? Infinity;
  const points = (series, k) => [
    ...(series.lines || []).flatMap((l) => l.x.map((x, i) => ({ x, y: l.y[i], name: l.label ? `${series.name}: ${l.label}` : series.name, k }))),
    ...(series.points || []).map((p) => ({ x: p.x, y: p.y, name: p.label || series.name, without: p.without, k })),
  ];
  const usable = (v, log) => v !== null && Number.isFinite(v) && (!log || v > 0);
  const part = figure.closest("article, section")?.querySelector("h2, h3")?.textContent;
  const svg = make("svg", { role: "application", "aria-roledescription": "chart", tabindex: "0", "aria-label": `${part}. ${spec.title}: ${spec.y} against ${spec.x}, for ${spec.series.map((s) => s.name).join("; ")}. Arrow keys read the values.` }, figure);
  const tip = make("p", { class: "tip", "aria-live": "polite" }, figure);
  const legend = make("ul", { class: "legend" }, figure);
  const tools = make("div", { class: "tools" }, figure);
  let seen = [], note = "";

  function render() {
    const width = Math.max(280, figure.clientWidth), height = Math.round(Math.min(340, Math.max(220, width * 0.55)));
    const edge = { left: 62, right: 26, top: 10, bottom: 44 };
    svg.replaceChildren();
    state.at = -1;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const visible = spec.series.map((s, k) => [s, k]).filter(([, k]) => !state.hidden.has(k));
    const everything = visible.flatMap(([s, k]) => points(s, k)).filter((p) => usable(p.x, false) && usable(p.y, false));
    const all = everything.filter((p) => usable(p.x, state.xLog) && usable(p.y, state.yLog));
    const lost = everything.length - all.length;
    const cut = all.filter((p) => p.y > top).length;
    const values = (count) => `${count} value${count > 1 ? "s" : ""}`;
    note = [
      lost && `${values(lost)} of 0 or less cannot stand on a logarithmic scale`,
      cut && `${values(cut)} above ${shown(top, spec.percent)} ${cut > 1 ? "are" : "is"} cut there`,
    ].filter(Boolean).join("; ");
    tip.textContent = note;
    seen = [];
    if (!all.length) {
      make("text", { x: width / 2, y: height / 2, "text-anchor": "middle", text: "nothing to show" }, svg);
      return;
    }
    const y = scale(all.map((p) => Math.min(p.y, top)), height - edge.bottom, edge.top, state.yLog);
    // Long numbers get more room, before anything is placed.
    edge.left = 28 + 7 * Math.max(4, ...y.ticks.map((t) => shown(t, spec.percent).length));
    const x = scale(all.map((p) => p.x), edge.left, width - edge.right, state.xLog);
    for (const t of y.ticks) {
      make("line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y.place(t), y2: y.place(t) }, svg);
      make("text", { x: edge.left - 6, y: y.place(t) + 4, "text-anchor": "end", text: shown(t, spec.percent) }, svg);
    }
    for (const t of x.ticks) make("text", { x: x.place(t), y: height - edge.bottom + 17, "text-anchor": "middle", text: shown(t) }, svg);
    make("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: height - edge.bottom, y2: height - edge.bottom }, svg);
    make("text", { x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle", text: spec.x }, svg);
    const side = make("text", { x: 13, y: (height - edge.bottom) / 2 + 6, "text-anchor": "middle", text: spec.y }, svg);
    side.setAttribute("transform", `rotate(-90 13 ${(height - edge.bottom) / 2 + 6})`);
    const inside = (v) => Math.min(height - edge.bottom, Math.max(edge.top, v));
    for (const [series, k] of visible) {
      if (series.band) {
        const { x: bx, low, high } = series.band;
        const there = bx.map((v, i) => i).filter((i) => [low[i], high[i]].every((v) => usable(v, state.yLog)) && usable(bx[i], state.xLog));
        const upper = there.map((i) => `${x.place(bx[i])} ${inside(y.place(high[i]))}`);
        const lower = there.map((i) => `${x.place(bx[i])} ${inside(y.place(low[i]))}`).reverse();
        if (there.length > 1) make("path", { d: `M${[...upper, ...lower].join("L")}z`, fill: colour(k), opacity: 0.18 }, svg);
      }
      for (const l of series.lines || []) {
        let path = "", pen = "M", count = 0;
        l.x.forEach((v, i) => {
          if (!usable(v, state.xLog) || !usable(l.y[i], state.yLog)) { pen = "M"; return; }
          path += `${pen}${x.place(v).toFixed(1)} ${inside(y.place(l.y[i])).toFixed(1)}`, pen = "L", count++;
        });
        if (count === 1) {
          const [px, py] = path.slice(1).split(" ").map(Number);
          marker(svg, k, px, py, { fill: colour(k) });
          continue;
        }
        make("path", { d: path, fill: "none", stroke: colour(k), "stroke-width": l.width === 1 ? 1.3 : 2.4, "stroke-dasharray": dash(style(k)) }, svg);
      }
      for (const p of series.points || [])
        if (usable(p.x, state.xLog) && usable(p.y, state.yLog)) marker(svg, k, x.place(p.x), inside(y.place(p.y)), { fill: colour(k) });
    }
    seen = all.map((p) => ({ ...p, px: x.place(p.x), py: inside(y.place(p.y)) })).sort((a, b) => a.k - b.k || a.px - b.px);
  }

  function tell(point) {
    svg.querySelector(".here")?.remove();
    tip.textContent = point ? `${point.name}: ${point.without || shown(point.y, spec.percent)} at ${spec.x} ${shown(point.x)}` : note;
    if (point) make("circle", { class: "here", cx: point.px, cy: point.py, r: 7, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }, svg);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), factor = svg.viewBox.baseVal.width / box.width;
    const px = (event.clientX - box.left) * factor, py = (event.clientY - box.top) * factor;
    let best = null, distance = 40 ** 2;
    for (const p of seen) {
      const d = (p.px - px) ** 2 + (p.py - py) ** 2;
      if (d < distance) [best, distance] = [p, d];
    }
    tell(best);
  });
  svg.addEventListener("pointerleave", () => tell(null));
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    const other = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!seen.length || (move === undefined && other === undefined)) return;
    event.preventDefault();
    if (move !== undefined) state.at = Math.max(0, Math.min(seen.length - 1, state.at + move));
    else {
      const kinds = [...new Set(seen.map((p) => p.k))], now = state.at < 0 ? -1 : kinds.indexOf(seen[state.at].k);
      state.at = seen.findIndex((p) => p.k === kinds[(Math.max(now + other, other < 0 ? -1 : 0) + kinds.length) % kinds.length]);
    }
    tell(seen[state.at]);
  });

  spec.series.forEach((series, k) => {
    const button = make("button", { type: "button", "aria-pressed": "true" }, make("li", {}, legend));
    const sample = make("svg", { viewBox: "0 0 36 12", "aria-hidden": "true" }, button);
    if (series.points) marker(sample, k, 18, 6, { fill: colour(k) });
    else make("line", { x1: 1, x2: 35, y1: 6, y2: 6, stroke: colour(k), "stroke-width": 3, "stroke-dasharray": dash(style(k)) }, sample);
    button.append(series.name);
    button.addEventListener("click", () => {
      const hide = !state.hidden.has(k);
      if (hide) state.hidden.add(k);
      else state.hidden.delete(k);
      button.setAttribute("aria-pressed", String(!hide));
      tell(null), render();
    });
  });
  for (const [axis, name] of [["yLog", "logarithmic scale"], ["xLog", "logarithmic scale below"]]) {
    if (axis === "xLog" && !spec.xLog) continue;
    const label = make("label", {}, tools), box = make("input", { type: "checkbox" }, label);
    box.checked = state[axis];
    label.append(` ${name}`);
    box.addEventListener("change", () => { state[axis] = box.checked, tell(null), render(); });
  }
  let width = 0;  // only a new width draws it anew, not a line of text below it
  new ResizeObserver(() => { if (figure.clientWidth !== width) width = figure.clientWidth, render(); }).observe(figure);
}

function sortable(button) {
  const header = button.closest("th"), table = header.closest("table"), column = header.cellIndex;
  button.addEventListener("click", () => {
    const up = header.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...table.tBodies[0].rows];
    const numbers = rows.every((row) => value(row) === undefined || !Number.isNaN(Number(value(row))));
    rows.sort((a, b) => {
      const [va, vb] = [value(a), value(b)];
      if (va === undefined || vb === undefined) return (va === undefined) - (vb === undefined);  // what is missing comes last
      const order = numbers ? Number(va) - Number(vb) : va.localeCompare(vb);
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  });
}

document.querySelectorAll("button.sort").forEach(sortable);
for (const figure of document.querySelectorAll("figure.chart")) {
  try {
    draw(figure);
  } catch (error) {
    make("p", { text: `This chart cannot be drawn: ${error.message}` }, figure);  // the others can
  }
}
