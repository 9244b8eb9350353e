"use strict";
// The flame graph of a report: drawn from the counts beside it, for the phase and the process that are chosen. A click on a function
// shows it and what it called in full width; what is searched for is marked.
(() => {
  const box = document.getElementById("flame-graph");
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
