// SPDX-License-Identifier: Apache-2.0
// Draws the page's figures in the reader's colours and fonts, and again when these or the width change.
(() => {
  "use strict";
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const places = [...document.querySelectorAll("[data-drawing]")];
  const narrow = matchMedia("(max-width: 40rem)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, typesetMath: false };
  const root = document.documentElement;

  // Figures name the style sheet's properties; Plotly wants what they stand for.
  const filled = (value, sheet) => {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? sheet.getPropertyValue(name[1]).trim() || value : value;
    }
    if (Array.isArray(value)) return value.map((item) => filled(item, sheet));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, filled(item, sheet)]));
    }
    return value;
  };

  const changed = (layout, changes) => {
    for (const [place, value] of Object.entries(changes)) {
      const keys = place.split(".");
      const last = keys.pop();
      keys.reduce((part, key) => (part[key] ??= {}), layout)[last] = value;
    }
  };

  const draw = (place) => {
    if (!place.offsetParent) return Promise.resolve(); // in a tab that is not shown
    const { data, layout } = filled(drawings[place.dataset.drawing], getComputedStyle(root));
    if (narrow.matches) changed(layout, layout.meta.narrow);
    place.style.minHeight = `${layout.height}px`;
    return Plotly.react(place, data, layout, config).then(() => place.setAttribute("data-drawn", ""));
  };

  const drawAll = () => Promise.all(places.map(draw));

  // Tabs: without scripts all panels are shown, one below the other.
  for (const list of document.querySelectorAll("[role=tablist]")) {
    const tabs = [...list.querySelectorAll("[role=tab]")];
    const show = (chosen) => {
      for (const tab of tabs) {
        const panel = document.getElementById(tab.getAttribute("aria-controls"));
        tab.setAttribute("aria-selected", String(tab === chosen));
        tab.tabIndex = tab === chosen ? 0 : -1;
        panel.classList.toggle("away", tab !== chosen);
        if (tab === chosen) panel.querySelectorAll("[data-drawing]").forEach(draw);
      }
    };
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    list.addEventListener("click", (event) => tabs.includes(event.target) && show(event.target));
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(event.target);
      if (at < 0 || !(event.key in steps)) return;
      const next = tabs[(at + steps[event.key] + tabs.length) % tabs.length];
      show(next);
      next.focus();
    });
    list.hidden = false;
    show(tabs[0]);
  }

  for (const query of [narrow, dark]) query.addEventListener("change", drawAll);
  // Paper is white and of its own width, and shows all tabs.
  const print = (on) => {
    root.classList.toggle("printed", on);
    drawAll();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  root.classList.add("scripted");
  drawAll();
})();
