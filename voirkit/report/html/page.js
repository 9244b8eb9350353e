"use strict";
// Quick tooltips, zoom along an axis. Everything can be read without.
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
  const axes = [...document.querySelectorAll(".ticks[data-group]")].map((row) => ({ row, whole: [...row.children] }));
  const timeUnit = (value) => [[1e-3, 1e6, "µs"], [1, 1e3, "ms"], [120, 1, "s"], [7200, 1 / 60, "min"], [172800, 1 / 3600, "h"], [Infinity, 1 / 86400, "d"]].find(([limit]) => value < limit);
  // as ticks() of components.py
  const ticksOf = (row, low, high) => {
    const { from, to, unit } = row.dataset, [, factor, name] = unit === "s" ? timeUnit(Math.max(Math.abs(low), Math.abs(high))) : [0, 1, ""];
    const least = ((high - low) * factor) / 4, power = 10 ** Math.floor(Math.log10(least));
    let step = [1, 2, 5, 10].find((times) => times * power >= least * (1 - 1e-9)) * power;
    if (unit !== "s" && Number.isInteger(+from) && Number.isInteger(+to) && high - low >= 1) step = Math.max(step, 1);
    const decimals = Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), made = [];
    for (let number = Math.ceil((low * factor) / step - 1e-9); number * step <= high * factor + step * 1e-9; number++) {
      const one = document.createElement("span"), share = ((number * step) / factor - low) / (high - low);
      one.style.left = `${100 * share}%`;
      one.style.transform = `translateX(${share > 0.92 ? -100 : share < 0.08 ? 0 : -50}%)`;
      one.textContent = `${(number * step).toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })} ${name}`.trimEnd();
      made.push(one);
    }
    return made;
  };
  const show = (group, low, high) => {
    for (const { svg, whole } of pictures)
      if (svg.dataset.group === group) svg.setAttribute("viewBox", low === null ? whole.join(" ") : `${low} ${whole[1]} ${high - low} ${whole[3]}`);
    for (const { row, whole } of axes)
      if (row.dataset.group === group) row.replaceChildren(...(low === null ? whole : ticksOf(row, low, high)));
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
