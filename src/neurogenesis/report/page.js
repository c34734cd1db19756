"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const options = {
    mode: "vega-lite",
    renderer: "svg",
    logLevel: 1, // errors only: Vega also warns about layers that a click has emptied
    actions: { export: true, source: false, compiled: false, editor: false },
  };

  // Tables are stored by column; a column of texts has each different text once, and their indices.
  const unpacked = ({ length, columns }) =>
    Array.from({ length }, (_, row) =>
      Object.fromEntries(
        Object.entries(columns).map(([name, { values, levels }]) => [name, levels ? levels[values[row]] : values[row]])
      )
    );
  const datasets = (data) => Object.fromEntries(Object.entries(data).map(([name, table]) => [name, unpacked(table)]));

  // A click in a legend hides a value in all figures: their selections are kept equal.
  const hidden = {};
  const legends = new Map(); // by view, the legends of its selections
  const shownIn = (view, legend) => view.data(legend.store).map((tuple) => tuple.values[0]);

  function synchronize(view, specification) {
    const own = (specification.params || [])
      .filter((parameter) => parameter.bind === "legend")
      .map((parameter) => {
        const field = parameter.select.fields[0];
        const store = `${parameter.name}_store`;
        return { field, store, names: parameter.value.map((one) => one[field]), fields: view.data(store)[0].fields };
      });
    legends.set(view, own);
    for (const legend of own) {
      hidden[legend.field] = hidden[legend.field] || new Set();
      view.addDataListener(legend.store, () => publish(view, legend));
      adopt(view, legend);
    }
  }

  function publish(view, legend) {
    const shown = shownIn(view, legend);
    for (const name of legend.names) {
      // An empty selection shows everything: hiding the last one shows all again.
      if (shown.length && !shown.includes(name)) hidden[legend.field].add(name);
      else hidden[legend.field].delete(name);
    }
    for (const [other, own] of legends) {
      if (other !== view) own.filter((one) => one.field === legend.field).forEach((one) => adopt(other, one));
    }
  }

  function adopt(view, legend) {
    const wanted = legend.names.filter((name) => !hidden[legend.field].has(name));
    const shown = shownIn(view, legend);
    const same = wanted.length === shown.length && wanted.every((name) => shown.includes(name));
    if (same || !wanted.length) return;
    const tuples = wanted.map((name) => ({ fields: legend.fields, values: [name] }));
    view.data(legend.store, tuples).runAsync();
  }

  async function draw(chart, data) {
    const { specification } = figures[chart.dataset.figure];
    const named = { ...options, downloadFileName: chart.dataset.figure };
    const { view } = await vegaEmbed(chart, { ...specification, datasets: datasets(data) }, named);
    synchronize(view, specification);
    return view;
  }

  async function drawChosen(chart) {
    const { choices } = figures[chart.dataset.figure];
    const select = chart.closest("figure").querySelector("select");
    const about = chart.closest("figure").querySelector(".about");
    let view = null;
    const choose = async () => {
      const choice = choices[select ? select.selectedIndex : 0];
      if (view) view.finalize();
      view = await draw(chart, choice.data);
      about.textContent = choice.about;
    };
    if (select) select.addEventListener("change", choose);
    await choose();
  }

  function sort(header) {
    const table = header.closest("table");
    const column = header.cellIndex;
    const down = header.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.cells[column].dataset.order;
    const compare = (a, b) => (isNaN(a) || isNaN(b) ? String(a).localeCompare(String(b)) : a - b);
    const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b)) * (down ? -1 : 1));
    table.tBodies[0].append(...rows);
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
  }
  for (const header of document.querySelectorAll("th")) {
    header.addEventListener("click", () => sort(header));
    header.addEventListener("keydown", (event) => event.key === "Enter" && sort(header));
  }

  (async () => {
    for (const chart of document.querySelectorAll(".chart")) {
      const { data, choices } = figures[chart.dataset.figure];
      await (choices.length ? drawChosen(chart) : draw(chart, data));
    }
    document.documentElement.dataset.drawn = "all";
  })();
})();
