// SPDX-License-Identifier: Apache-2.0
"use strict";
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.errors = event.message; });

  const STEP = 200;
  const STATUS = 4;
  const ERROR = 9;
  const data = JSON.parse(document.getElementById("cases-data").textContent);
  const body = document.querySelector("#cases tbody");
  const name = document.getElementById("filter-name");
  const selects = [...document.querySelectorAll("select[data-column]")];
  const more = document.getElementById("more");
  let sorted = { column: 0, down: false };
  let limit = STEP;
  let matching = [];

  const value = (row, column) => (data.numbers[column] ? row[column] : data.texts[row[column]]);

  function kind(status) {
    if (status === "verified") return "good";
    return status === "cannot build" ? "plain" : "bad";
  }

  function cell(row, column) {
    const element = document.createElement("td");
    const shown = value(row, column);
    if (data.numbers[column]) element.className = "number";
    if (column === STATUS) {
      const badge = document.createElement("span");
      badge.className = `badge ${kind(shown)}`;
      badge.textContent = shown;
      element.append(badge);
    } else {
      element.textContent = shown ?? "–";
    }
    return element;
  }

  function line(row) {
    const element = document.createElement("tr");
    element.append(...data.numbers.map((_, column) => cell(row, column)));
    return element;
  }

  function compare(first, second) {
    const [one, other] = [value(first, sorted.column), value(second, sorted.column)];
    const order = data.numbers[sorted.column] ? (one ?? -1) - (other ?? -1) : one.localeCompare(other, "en");
    return sorted.down ? -order : order;
  }

  function draw() {
    body.replaceChildren(...matching.slice(0, limit).map(line));
    more.hidden = matching.length <= limit;
    document.getElementById("matches").textContent = `${matching.length} of ${data.rows.length}`;
  }

  function update() {
    const wanted = name.value.trim().toLowerCase();
    const chosen = selects.filter((select) => select.value).map((select) => [Number(select.dataset.column), select.value]);
    matching = data.rows.filter(
      (row) =>
        chosen.every(([column, text]) => value(row, column) === text) &&
        [0, 1, ERROR].some((column) => value(row, column).toLowerCase().includes(wanted)),
    );
    matching.sort(compare);
    limit = STEP;
    draw();
  }

  for (const button of document.querySelectorAll("#cases thead button")) {
    button.addEventListener("click", () => {
      const column = Number(button.dataset.column);
      sorted = { column, down: sorted.column === column ? !sorted.down : data.numbers[column] };
      for (const heading of document.querySelectorAll("#cases thead th")) heading.setAttribute("aria-sort", "none");
      button.parentElement.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      update();
    });
  }
  name.addEventListener("input", update);
  for (const select of selects) select.addEventListener("change", update);
  more.addEventListener("click", () => { limit += STEP; draw(); });
  document.querySelector("#cases thead th").setAttribute("aria-sort", "ascending");
  update();
  root.dataset.ready = "yes";
})();
