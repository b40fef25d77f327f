// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.errors = event.message; });

  const facts = JSON.parse(document.getElementById("facts").textContent);
  const panel = document.getElementById("panel");

  function make(name, text) {
    const element = document.createElement(name);
    element.textContent = text;
    return element;
  }

  function show(fact) {
    const list = document.createElement("dl");
    const entries = [
      ["Verdict", fact.verdict],
      ["Largest difference", fact.difference],
      ["Distance", fact.distance],
      ["Relative to the largest magnitude", fact.relative],
      ["Allowed", `${fact.allowed} (${fact.tolerances})`],
      ["Elements outside", fact.outside],
      ["Shape and dtype", `${fact.shape.join(" × ") || "scalar"} ${fact.dtype}`],
    ];
    if (fact.detail) entries.push(["Detail", fact.detail]);
    for (const [term, value] of entries) {
      const entry = document.createElement("div");
      entry.append(make("dt", term), make("dd", value));
      list.append(entry);
    }
    const title = document.createElement("div");
    title.append(make("code", fact.output), document.createTextNode(` at ${fact.name}`));
    panel.replaceChildren(title, list);
    for (const cell of document.querySelectorAll(".cell")) {
      const same = Number(cell.dataset.variation) === fact.variation && cell.dataset.output === fact.cell;
      cell.classList.toggle("chosen", same);
    }
  }

  function find(cell) {
    const here = facts.filter(
      (fact) => fact.variation === Number(cell.dataset.variation) && fact.cell === cell.dataset.output,
    );
    return here.length ? worst(here) : undefined;
  }

  function rank(fact) {
    return (fact.passed ? 0 : 1e9) + (fact.share ?? 0);
  }

  function worst(some) {
    return some.reduce((first, second) => (rank(second) > rank(first) ? second : first));
  }

  if (panel) {
    for (const cell of document.querySelectorAll(".cell")) {
      const fact = find(cell);
      if (fact) cell.addEventListener("click", () => show(fact));
    }
    if (facts.length) show(worst(facts));

    const rows = [...document.querySelectorAll("#checks tbody tr")];
    const field = document.getElementById("filter");
    const filter = () => {
      const wanted = field.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += row.hidden ? 0 : 1;
      }
      document.getElementById("matches").textContent = `${shown} of ${rows.length}`;
    };
    field.addEventListener("input", filter);
    filter();
  }
  root.dataset.ready = "yes";
})();
