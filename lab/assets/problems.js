/* The tables of all problems, and the window with one problem's life. What the page holds is made
   by lab/report/problems.py; nothing is unpacked before it is near, and nothing is fetched. */
(function () {
  "use strict";
  const NARROW = 560;
  const blocks = new Map();
  let view = null;

  function read(id) {
    if (!blocks.has(id)) blocks.set(id, window.guardText(id).then(JSON.parse));
    return blocks.get(id);
  }

  /* Text is set as text: nothing that a run holds is read as markup. */
  function element(name, values, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(values || {})) {
      if (key === "text") made.textContent = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function button(text, onclick, values) {
    return element("button", { type: "button", text, ...(onclick && { onclick }), ...values });
  }

  function select(label, texts, onchange) {
    const options = texts.map((text) => element("option", { text }));
    return element("select", { "aria-label": label, onchange }, ...options);
  }

  class ProblemTable {
    constructor(place) {
      this.place = place;
      this.sort = { arm: null, kind: "problem", down: false };
    }

    async build() {
      Object.assign(this, await read(this.place.dataset.table));
      this.alone = this.replicates.length === 1;
      const single = this.alone ? [] : new Set(this.lives.flat());
      /* Whose numbers can be shown: means over all replicates (null), or those of one. */
      this.numbersOf = [...(this.redrawn ? [] : [null]), ...single];
      this.replicate = this.numbersOf[0];
      this.row = new Map(this.columns.problem.map((problem, i) => [problem, i]));
      this.frame();
      this.find();
    }

    nameOf(problem) {
      return problem + (this.ids?.[problem] ? " (" + this.ids[problem] + ")" : "");
    }

    /* A number of the table; a fate is 0, another number null where it is not known. */
    value(arm, kind, i, replicate = this.replicate) {
      if (arm === null) return this.columns.problem[i];
      const name = arm + "." + kind + (replicate === null || this.alone ? "" : "." + replicate);
      return this.columns[name]?.[i] ?? (kind === "fate" ? 0 : null);
    }

    fateIn(problem, arm, replicate) {
      return this.fates[this.value(arm, "fate", this.row.get(problem), replicate) - 1]?.name || "";
    }

    /* Rows of a number or a part of a name, with a fate under an arm, or under any. */
    find() {
      const wanted = this.search.value.trim().toLowerCase();
      const arm = this.arm.selectedIndex - 1, fate = this.fate.selectedIndex;
      const arms = this.arms.map((_, k) => k).filter((k) => arm < 0 || k === arm);
      this.found = [...this.columns.problem.keys()].filter((i) => {
        const problem = this.columns.problem[i];
        const name = (this.ids?.[problem] || "").toLowerCase();
        const exact = String(problem) === wanted || name === wanted;
        const named = /^\d+$/.test(wanted) ? exact : name.includes(wanted);
        return named && (!fate || arms.some((k) => this.value(k, "fate", i) === fate));
      });
      this.order();
    }

    order() {
      const { arm, kind, down } = this.sort;
      const unknown = (value) => value === null || (kind === "fate" && !value);
      this.found.sort((a, b) => {
        const [one, other] = [a, b].map((i) => this.value(arm, kind, i));
        // What is not known stands last in either order.
        if (unknown(one) || unknown(other)) return unknown(one) - unknown(other) || a - b;
        return (down ? other - one : one - other) || a - b;
      });
      this.count.textContent = "shown " + this.found.length + " of " + this.columns.problem.length;
      this.showHead();
      this.body.replaceChildren(...this.found.map((i) => this.line(i)));
    }

    frame() {
      const find = () => this.find();
      this.search = element("input", { type: "search", "aria-label": "Search", autocomplete: "off",
        placeholder: this.ids ? "number or name" : "number", oninput: find });
      this.arm = select("Arm", ["any arm", ...this.arms], find);
      this.fate = select("Fate", ["any fate", ...this.fates.map((fate) => fate.name)], find);
      this.fate.hidden = this.arm.hidden = !this.kinds.some((kind) => kind.key === "fate");
      this.chooser = select("Numbers of", this.numbersOf.map((n) =>
        n === null ? "means over all replicates" : "replicate " + this.replicates[n]), () => {
        this.replicate = this.numbersOf[this.chooser.selectedIndex];
        this.find();
      });
      this.chooser.hidden = this.numbersOf.length < 2;
      this.count = element("output", { "aria-live": "polite" });
      this.head = element("thead");
      this.body = element("tbody", { onclick: (event) => this.clicked(event) });
      const caption = element("caption", { text: this.caption });
      const table = element("table", { class: "problem-table" }, caption, this.head, this.body);
      this.place.replaceChildren(
        element("div", { class: "problem-search", role: "search" },
          this.search, this.arm, this.fate, this.chooser, this.count),
        element("div", { class: "scroll tall", tabindex: "0", role: "region",
          "aria-label": "Problems, " + this.title }, table));
    }

    showHead() {
      const group = this.arms.map((text) =>
        element("th", { scope: "colgroup", colspan: String(this.kinds.length), text }));
      const own = this.arms.flatMap((arm, k) => this.kinds.map((kind) =>
        this.sorter(k, kind.key, kind.name, kind.meaning + ", " + arm)));
      this.head.replaceChildren(
        element("tr", {}, element("td"), ...group),
        element("tr", {}, this.sorter(null, "problem", "problem", "problem number"), ...own));
    }

    sorter(arm, kind, name, meaning) {
      const chosen = this.sort.arm === arm && this.sort.kind === kind;
      const order = chosen ? (this.sort.down ? "descending" : "ascending") : "none";
      const mark = { none: "", ascending: " ▴", descending: " ▾" }[order];
      const sort = () => {
        this.sort = { arm, kind, down: order === "ascending" };
        this.order();
        this.head.querySelector("[data-sort='" + arm + "." + kind + "']").focus();
      };
      return element("th", { scope: "col", class: kind, "aria-sort": order }, button(name + mark,
        sort, { "data-sort": arm + "." + kind, title: meaning, "aria-label": "Sort by " + meaning }));
    }

    line(i) {
      const problem = this.columns.problem[i], id = this.ids?.[problem];
      const name = id ? [" ", element("span", { class: "spread", text: id, title: id })] : [];
      const cells = this.arms.flatMap((_, k) => this.kinds.map((kind) => element("td",
        { "data-arm": String(k), class: kind.key }, ...this.cell(kind, k, i))));
      return element("tr", { "data-problem": String(problem) },
        element("th", { scope: "row" }, button(problem), ...name), ...cells);
    }

    cell(kind, arm, i) {
      const value = this.value(arm, kind.key, i);
      const text = kind.percent ? (100 * value).toFixed(0) : String(value);
      if (kind.key !== "fate") return [value === null ? "–" : text];
      if (!value) return ["not known"];
      const { name, colour } = this.fates[value - 1], known = this.value(arm, "known", i);
      const dot = element("span", { class: "fate-dot", "aria-hidden": "true" });
      dot.style.background = colour;
      const shared = " " + this.value(arm, "same", i) + "/" + known;
      return [dot, name, ...(known > 1 ? [element("span", { class: "spread", text: shared })] : [])];
    }

    clicked(event) {
      const row = event.target.closest("tr"), arm = event.target.closest("td")?.dataset.arm;
      open(this, Number(row.dataset.problem), arm);
    }
  }

  function makeView() {
    const parts = {
      title: element("h3", { id: "life-title" }),
      choice: element("select", { "aria-label": "Arm and replicate", onchange: () => draw() }),
      fact: element("p", { class: "life-fact", "aria-live": "polite" }),
      plot: element("div", { class: "plot life-plot", role: "img", "aria-labelledby": "life-title" }),
    };
    const dialog = element("dialog", { class: "life", "aria-labelledby": "life-title" },
      element("div", { class: "life-head" }, parts.title, button("Close", () => dialog.close())),
      parts.choice, parts.fact, parts.plot);
    document.body.append(dialog);
    return { dialog, parts };
  }

  /* Opens a problem under an arm; keeps the arm and the replicate that were looked at last. */
  function open(table, problem, arm) {
    view = view || makeView();
    const { parts, dialog } = view, last = view.table === table ? view.shown : "";
    Object.assign(view, { table, problem });
    parts.title.textContent = "Problem " + table.nameOf(problem) + ", " + table.title;
    parts.choice.replaceChildren(...table.lives.flatMap((replicates, k) => replicates.map((r) => {
      const fate = table.fateIn(problem, k, r);
      const text = table.arms[k] + ", " + table.replicates[r] + (fate ? ": " + fate : "");
      return element("option", { value: k + "-" + r, text });
    })));
    const values = [...parts.choice.options].map((option) => option.value);
    parts.choice.value = [last, ...values].find((value) => {
      const [k, r] = value.split("-");
      return values.includes(value) && (arm === undefined || k === arm)
        && (table.replicate === null || Number(r) === table.replicate);
    }) ?? values[0];
    dialog.showModal();
    draw();
  }

  async function draw() {
    const { table, problem, parts } = view, shown = (view.shown = parts.choice.value);
    const lives = await read(["life", table.world, shown].join("-"));
    const template = await read("life-template");
    await window.guardReady;
    if (view.problem !== problem || view.shown !== shown) return;
    const own = lives[problem];
    window.Plotly.purge(parts.plot);
    parts.fact.textContent = own ? "The label changed " + own.flips + " times in training."
      : "This replicate never visited the problem.";
    if (!own) return;
    const name = ["life", table.slug, problem, shown].join("-");
    await window.guardDraw(parts.plot, filled(template, own, parts.plot.clientWidth), name);
    parts.plot.dataset.shown = problem + "-" + shown;
  }

  /* The figure that lab.figures.problems drew as a template, with one life's numbers; its texts are
     escaped there, since Plotly reads a subset of HTML in its labels. */
  function filled(template, own, width) {
    const layout = structuredClone(template.layout);
    for (const axis of Object.keys(layout).filter((key) => key.startsWith("xaxis"))) {
      layout[axis].range = [-0.5, own.visit[own.visit.length - 1] + 0.5];
    }
    const largest = 0.75 * (width - 80) / own.visit.length;
    const percent = (y) => typeof y === "string"  // a letter per visit stands for its votes
      ? [...y].map((letter, i) => 100 * (letter.codePointAt(0) - 48) / own.votes[i]) : y;
    const data = own.traces.map(([place, name, x, y, custom]) => {
      const trace = { ...template.data[place], x: x || own.visit, y: percent(y) || x.map(() => 0) };
      if (name !== null) trace.name = name;
      if (custom) trace.customdata = custom;
      const size = Math.max(3, Math.min(trace.marker?.size, largest));
      return trace.marker ? { ...trace, marker: { ...trace.marker, size } } : trace;
    });
    if (width < NARROW) {  // on a phone the legend would leave no room for the areas
      layout.font = { size: 11 };
      layout.legend = { ...layout.legend, y: -0.1, yanchor: "top", font: { size: 10 } };
      layout.height += 30 + 18 * data.length;
    }
    return { data, layout };
  }

  const near = new IntersectionObserver((entries) => {
    for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
      near.unobserve(target);
      new ProblemTable(target).build();
    }
  }, { rootMargin: "800px" });
  document.querySelectorAll(".problems[data-table]").forEach((place) => near.observe(place));
})();
