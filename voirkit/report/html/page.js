"use strict";
// Quick tooltips, zoom along an axis, the flame graph. Everything can be read without.
(() => {
  document.documentElement.classList.add("scripted");

  // tooltips: what a browser shows after a second is shown at once
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const said = (element) => {
    if (!element.dataset.tip) {
      const title = element.querySelector(":scope > title");
      element.dataset.tip = title ? title.textContent : element.getAttribute("title") || "";
      if (title) title.remove();
      element.removeAttribute("title");
    }
    return element.dataset.tip;
  };
  document.addEventListener("mousemove", (event) => {
    const at = event.target instanceof Element ? event.target.closest("svg [data-tip], svg :has(> title), .track [title], .track [data-tip]") : null;
    tip.hidden = !at || !said(at);
    if (tip.hidden) return;
    tip.textContent = said(at);
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 18}px`;
  });

  // zoom: drag over a picture of an axis, double click to see all of it; all pictures of a group go together
  const pictures = [...document.querySelectorAll("svg[data-group]")].map((svg) => ({ svg, whole: svg.getAttribute("viewBox").split(" ").map(Number) }));
  const ticks = [...document.querySelectorAll(".ticks[data-group]")].map((row) => ({ row, texts: [...row.children].map((one) => one.textContent) }));
  const seconds = (value) => {
    for (const [limit, factor, unit] of [[1e-3, 1e6, "µs"], [1, 1e3, "ms"], [120, 1, "s"], [7200, 1 / 60, "min"], [172800, 1 / 3600, "h"]])
      if (Math.abs(value) < limit) return `${+(value * factor).toPrecision(4)} ${unit}`;
    return `${+(value / 86400).toPrecision(4)} d`;
  };
  const show = (group, low, high) => {
    for (const { svg, whole } of pictures)
      if (svg.dataset.group === group) svg.setAttribute("viewBox", low === null ? whole.join(" ") : `${low} ${whole[1]} ${high - low} ${whole[3]}`);
    for (const { row, texts } of ticks)
      if (row.dataset.group === group)
        [...row.children].forEach((one, i) => {
          const value = low + ((high - low) * i) / (row.children.length - 1);
          one.textContent = low === null ? texts[i] : row.dataset.units === "s" ? seconds(value) : +value.toPrecision(4);
        });
  };
  for (const { svg, whole } of pictures) {
    const group = svg.dataset.group;
    let from = null, zone = null;
    const place = (x) => {
      const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
      return view.x + (Math.max(0, Math.min(x - box.left, box.width)) / box.width) * view.width;
    };
    svg.addEventListener("dblclick", () => show(group, null, null));
    svg.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      from = event.clientX;
      svg.setPointerCapture(event.pointerId);
      zone = document.createElement("div");
      zone.className = "zone";
      document.body.append(zone);
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const box = svg.getBoundingClientRect();
      const left = Math.max(Math.min(from, event.clientX), box.left), right = Math.min(Math.max(from, event.clientX), box.right);
      Object.assign(zone.style, { left: `${left + scrollX}px`, width: `${Math.max(0, right - left)}px`, top: `${box.top + scrollY}px`, height: `${box.height}px` });
    });
    svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = [place(Math.min(from, event.clientX)), place(Math.max(from, event.clientX))];
      if (Math.abs(event.clientX - from) > 5 && high - low > whole[2] / 1e5) show(group, low, high);
      from = null;
      zone.remove();
    });
  }
  // what is folded is printed
  const closed = [];
  addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((one) => closed.push(one) && (one.open = true)));
  addEventListener("afterprint", () => closed.splice(0).forEach((one) => (one.open = false)));
})();

// The flame graph of a report: drawn from the counts beside it, for the phase and the process that are chosen. A click on a function
// shows it and what it called in full width; what is searched for is marked.
(() => {
  const box = document.getElementById("flame-graph");
  if (!box) return;
  const data = JSON.parse(document.getElementById("flame-counts").textContent);
  const [phases, processes, search, lines, back, told] = ["phase", "process", "search", "lines", "back", "told"].map((id) => document.getElementById(`flame-${id}`));
  const ROW = 18, LETTER = 6.7, LEAST = 0.4;
  const SVG = "http://www.w3.org/2000/svg";
  let root = null, focus = null;

  // a node: {name, kind, n, kids: Map by name, up}
  const node = (name, kind, up) => ({ name, kind, n: 0, kids: new Map(), up });
  const kid = (parent, name, kind) => {
    if (!parent.kids.has(name)) parent.kids.set(name, node(name, kind, parent));
    return parent.kids.get(name);
  };
  const add = (parent, trees) => {
    const left = trees.map((tree) => [parent, tree]);
    while (left.length) {
      const [up, [at, n, kids]] = left.pop();
      const made = kid(up, lines.checked ? data.names[at] : data.functions[at] ?? data.names[at], data.kinds[at]);
      made.n += n;
      for (const one of kids) left.push([made, one]);
    }
  };
  const build = () => {
    root = node("all", "k-dim", null);
    for (const group of data.groups) {
      if ((phases.value && group.phase !== phases.value) || !data.choices[processes.value].includes(group.process)) continue;
      root.n += group.n;
      const top = kid(root, group.phase, group.kind);
      top.n += group.n;
      add(top, group.tree);
    }
    focus = root;
  };

  const time = (n) => {
    const s = n * data.period_s;
    return s >= 100 ? `${s.toFixed(0)} s` : s >= 1 ? `${s.toPrecision(3)} s` : `${(s * 1000).toPrecision(3)} ms`;
  };
  const share = (n, of) => `${((100 * n) / of).toFixed(n / of >= 0.1 ? 0 : 1)}%`;
  const element = (name, attributes) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const draw = () => {
    const width = Math.max(box.clientWidth, 200), wanted = search.value.toLowerCase();
    const svg = element("svg", { width, role: "img", "aria-label": "flame graph" });
    let depth = 0, marked = 0;
    const put = (one, x, y, wide, faint) => {
      const hit = wanted && one.name.toLowerCase().includes(wanted);
      const said = `${one.name}\n${one.n.toLocaleString("en")} stacks, about ${time(one.n)}, ${share(one.n, root.n)} of what is shown`;
      const g = element("g", { class: `${one.kind}${faint ? " faint" : ""}${hit ? " hit" : ""}`, "data-tip": said, transform: `translate(${x.toFixed(2)} ${y * ROW})` });
      g.append(element("rect", { width: Math.max(wide - 0.6, 0.3).toFixed(2), height: ROW - 1, rx: 2 }));
      const letters = Math.floor((wide - 6) / LETTER);
      if (letters > 2) {
        const label = element("text", { x: 4, y: ROW - 5.5 });
        label.textContent = one.name.length > letters ? `${one.name.slice(0, letters - 1)}…` : one.name;
        g.append(label);
      }
      g.addEventListener("click", () => { focus = one; draw(); });
      svg.append(g);
      depth = Math.max(depth, y + 1);
      return hit;
    };
    const above = [];
    for (let one = focus; one; one = one.up) above.unshift(one);
    let inMarked = false;
    above.forEach((one, y) => { if (put(one, 0, y, width, one !== focus) && one !== root) inMarked = true; });
    if (inMarked) marked = focus.n;
    const left = [[focus, 0, above.length, inMarked]];
    while (left.length) {
      const [up, x, y, counted] = left.pop();
      let at = x;
      for (const one of [...up.kids.values()].sort((a, b) => b.n - a.n)) {
        const wide = (width * one.n) / focus.n;
        const hit = wanted && one.name.toLowerCase().includes(wanted);
        if (hit && !counted) marked += one.n;
        if (wide >= LEAST) put(one, at, y, wide, false);
        if (wide >= LEAST || (wanted && !hit)) left.push([one, at, y + 1, counted || hit]);
        at += wide;
      }
    }
    svg.setAttribute("height", depth * ROW + 2);
    box.replaceChildren(svg);
    back.disabled = focus === root;
    told.textContent = !root.n ? "nothing was seen here" : wanted ? `${share(marked, focus.n)} of ${time(focus.n)} match` : `${focus.n.toLocaleString("en")} stacks, about ${time(focus.n)}`;
  };

  const anew = () => { build(); draw(); };
  phases.addEventListener("change", anew);
  processes.addEventListener("change", anew);
  lines.addEventListener("change", anew);
  search.addEventListener("input", draw);
  back.addEventListener("click", () => { focus = root; draw(); });
  let drawn = 0;
  new ResizeObserver(() => { if (box.clientWidth !== drawn) { drawn = box.clientWidth; draw(); } }).observe(box);
  document.getElementById("flame-choices").hidden = false;
  anew();
})();
