/* The window that shows one problem's life: choose the arm and the replicate, go to the next
   problem of the list. `window.guardLives` draws. */
(function () {
  "use strict";
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [["toImage", "resetScale2d"]],
    plotlyServerURL: "",
  };
  const NARROW = 560;
  let view = null;

  function element(name, values, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(values || {})) {
      if (key === "text") made.textContent = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  function build() {
    const parts = {
      title: element("h3", { id: "life-title" }),
      world: element("p", { class: "life-world" }),
      arms: element("div", { class: "life-arms", role: "group", "aria-label": "Arm" }),
      replicate: element("select", { id: "life-replicate" }),
      fact: element("p", { class: "life-fact", "aria-live": "polite" }),
      plot: element("div", { class: "plot life-plot", role: "img" }),
      before: element("button", { type: "button", text: "‹ Previous problem" }),
      after: element("button", { type: "button", text: "Next problem ›" }),
    };
    const close = element("button", { type: "button", class: "life-close", text: "Close" });
    const choice = element("label", { for: "life-replicate", text: "Replicate " });
    const dialog = element(
      "dialog", { class: "life", "aria-labelledby": "life-title" },
      element("div", { class: "life-head" }, parts.title, close), parts.world,
      element("div", { class: "life-choice" }, parts.arms,
        element("div", {}, choice, parts.replicate)),
      parts.fact, parts.plot,
      element("div", { class: "life-foot" }, parts.before, parts.after),
    );
    document.body.append(dialog);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    dialog.addEventListener("close", left);
    parts.replicate.addEventListener("change", () => {
      view.replicate = Number(parts.replicate.value);
      draw();
    });
    parts.before.addEventListener("click", () => go(-1));
    parts.after.addEventListener("click", () => go(1));
    return { dialog, parts, drawn: 0 };
  }

  /* Without its hash, the address no longer asks for a problem. */
  function left() {
    window.Plotly.purge(view.parts.plot);
    if (location.hash.startsWith("#problem-")) {
      history.replaceState(null, "", location.href.split("#")[0]);
    }
    view.table.focus(view.problem);
  }

  function go(by) {
    const next = view.table.neighbour(view.problem, by);
    if (next !== null) location.hash = view.table.hash(next);
  }

  /* Opens a problem; keeps the arm and the replicate that were looked at last. */
  function open(table, problem, arm) {
    if (!view) view = build();
    if (view.table !== table) Object.assign(view, { arm: null, replicate: null });
    view.table = table;
    view.problem = problem;
    if (table.openable(arm).length) view.arm = arm;
    if (table.replicate !== null) view.replicate = table.replicate;
    if (view.arm === null) view.arm = table.arms.findIndex((_, k) => table.openable(k).length);
    view.parts.title.textContent = "Problem " + table.nameOf(problem);
    view.parts.world.textContent = table.title;
    view.parts.before.disabled = table.neighbour(problem, -1) === null;
    view.parts.after.disabled = table.neighbour(problem, 1) === null;
    if (!view.dialog.open) view.dialog.showModal();
    draw();
  }

  function showArms() {
    view.parts.arms.replaceChildren(...view.table.arms.map((arm, k) => element("button", {
      type: "button",
      text: arm.title,
      "aria-pressed": String(k === view.arm),
      disabled: !view.table.openable(k).length,
      title: view.table.openable(k).length ? null : "not on this page: too large",
      onclick: () => {
        view.arm = k;
        draw();
        view.parts.arms.children[k].focus();
      },
    })));
  }

  function showReplicates() {
    const numbers = view.table.openable(view.arm);
    if (!numbers.includes(view.replicate)) view.replicate = numbers[0];
    view.parts.replicate.replaceChildren(...numbers.map((number) => {
      const fate = view.table.fateIn(view.problem, view.arm, number);
      const text = view.table.replicates[number] + (fate ? ": " + fate : "");
      return element("option", { value: String(number), text });
    }));
    view.parts.replicate.value = String(view.replicate);
  }

  function fact(own) {
    const fate = view.table.fateIn(view.problem, view.arm, view.replicate);
    const flips = own.flipped.filter((flipped, i) => flipped && own.visit[i] > 0).length;
    const times = ["never changed", "changed once"][flips] || "changed " + flips + " times";
    return (fate ? fate + "; the" : "The") + " label " + times + " in training.";
  }

  async function draw() {
    showArms();
    showReplicates();
    const wanted = ++view.drawn;
    const { table, problem, parts } = view;
    const columns = await window.guardLives.block(table.block(view.arm, view.replicate));
    if (wanted !== view.drawn || !view.dialog.open) return;
    const own = window.guardLives.life(columns, problem);
    if (!own) {
      window.Plotly.purge(parts.plot);
      parts.fact.textContent = "This replicate never visited the problem.";
      return;
    }
    parts.fact.textContent = fact(own);
    const { data, layout } = window.guardLives.figure(own);
    const narrow = parts.plot.clientWidth < NARROW;
    if (narrow) fit(layout, data.length);
    const room = (parts.plot.clientWidth - 80) / own.visit.length;
    for (const trace of data.filter((each) => each.marker)) {
      trace.marker = { ...trace.marker, size: Math.max(3, Math.min(trace.marker.size, 0.75 * room)) };
    }
    parts.plot.setAttribute("aria-label", "Votes, label, flip rate, weight and route of problem "
      + table.nameOf(problem) + " under " + table.arms[view.arm].title + ": " + fact(own));
    await window.Plotly.react(parts.plot, data, layout, { ...CONFIG, displayModeBar: narrow ? false : "hover" });
    parts.plot.dataset.shown = [problem, view.arm, view.replicate].join("-");
  }

  /* On a phone the legend would leave no room for the areas. */
  function fit(layout, nTraces) {
    layout.font = { ...layout.font, size: 11 };
    layout.legend = { ...layout.legend, y: -0.1, yanchor: "top", font: { size: 10 } };
    layout.height += 30 + 18 * nTraces;
  }

  function close() {
    if (view) view.dialog.close();
  }

  window.guardLifeView = { open, close, element };
})();
