/* The tables of all problems: searched, sorted and shown in pages of rows, so that the document
   stays light; a row opens the problem's life. Built when its part of the page comes near. */
(function () {
  "use strict";
  const ROWS = 50;
  const HASH = /^#problem-(\d+)-(\d+)$/;
  const { element } = window.guardLifeView;
  const tables = [];

  class ProblemTable {
    constructor(place) {
      this.place = place;
      const about = document.getElementById(place.dataset.about);
      Object.assign(this, JSON.parse(about.textContent));
      this.page = 0;
      this.sort = { arm: null, kind: "problem", down: false };
      /* Whose numbers are shown: of one replicate, or means over all (null). */
      this.alone = this.replicates.length === 1;
      const single = this.alone ? [] : new Set(this.lives.flat());
      this.numbersOf = [...(this.redrawn ? [] : [null]), ...single];
      this.replicate = this.numbersOf[0];
      this.ready = null;
    }

    /* Reads the numbers and makes the table, once. */
    build() {
      if (!("DecompressionStream" in window)) {
        this.place.textContent = "This browser is too old to unpack the table of problems.";
        return new Promise(() => {});
      }
      this.ready = this.ready || window.guardLives.unpack(this.numbers).then((columns) => {
        this.columns = columns;
        this.row = new Map(Array.from(columns.problem, (problem, i) => [problem, i]));
        this.words = Array.from(columns.problem, (problem) => this.text(problem));
        this.frame();
        this.find();
      });
      return this.ready;
    }

    text(problem) {
      return (this.ids ? String(this.ids[problem] ?? "") : "").toLowerCase();
    }

    nameOf(problem) {
      const id = this.ids && this.ids[problem];
      return id === undefined || id === null ? String(problem) : problem + " (" + id + ")";
    }

    hash(problem) { return "#problem-" + this.world + "-" + problem; }
    openable(arm) { return this.lives[arm] || []; }
    block(arm, replicate) { return ["life", this.world, arm, replicate].join("-"); }

    /* A number of the table; a fate is 0, another number NaN where it is not known. */
    value(arm, kind, i, replicate = this.replicate) {
      if (arm === null) return this.columns.problem[i];
      const name = arm + "." + kind + (replicate === null || this.alone ? "" : "." + replicate);
      return this.columns[name]?.[i] ?? (kind === "fate" ? 0 : NaN);
    }

    fateIn(problem, arm, replicate) {
      const code = this.value(arm, "fate", this.row.get(problem), replicate);
      return code ? this.fates[code - 1].name : "";
    }

    /* The problem before or after another one in the order that is shown. */
    neighbour(problem, by) {
      const found = this.found.indexOf(this.row.get(problem));
      const next = this.found[found + by];
      return found < 0 || next === undefined ? null : this.columns.problem[next];
    }

    focus(problem) {
      const at = this.found.indexOf(this.row.get(problem));
      if (at >= 0 && Math.floor(at / ROWS) !== this.page) {
        this.page = Math.floor(at / ROWS);
        this.show();
      }
      const link = this.body.querySelector("a[href='" + this.hash(problem) + "']");
      if (link) link.focus();
    }

    /* Rows that the search finds. Every word must be in the problem's id, or in the title or the
       fate of one and the same arm; a number is a problem's number; a leading minus excludes. */
    find() {
      const words = this.search.value.toLowerCase().split(/\s+/).filter((word) => word);
      const left = this.arms.map((arm) => [null, ...this.fates].map((fate) =>
        words.filter((word) => !this.inArm(word, arm, fate))));
      const rows = this.columns.problem;
      this.found = Array.from(rows.keys()).filter((i) => this.arms.some((_, k) =>
        left[k][this.value(k, "fate", i)].every((word) => this.ofProblem(word, i))));
      this.order();
    }

    inArm(word, arm, fate) {
      if (word.startsWith("-") && word.length > 1) return !this.inArm(word.slice(1), arm, fate);
      if (this.arms.some((other) => other.name.toLowerCase() === word)) {
        return arm.name.toLowerCase() === word;
      }
      const texts = [arm.title, fate ? fate.name : "not known"];
      return texts.some((text) => text.toLowerCase().includes(word));
    }

    ofProblem(word, i) {
      if (word.startsWith("-")) return word.length === 1;
      if (String(this.columns.problem[i]) === word) return true;
      return !/^\d+$/.test(word) && this.words[i].includes(word);
    }

    order() {
      const { arm, kind, down } = this.sort;
      const values = new Map(this.found.map((i) => [i, this.value(arm, kind, i)]));
      const unknown = (value) => Number.isNaN(value) || (kind === "fate" && !value);
      const shared = (i) => (kind === "fate" ? this.value(arm, "same", i) || 0 : 0);
      this.found.sort((a, b) => {
        const [one, other] = [values.get(a), values.get(b)];
        // What is not known stands last in either order.
        if (unknown(one) || unknown(other)) return unknown(one) - unknown(other) || a - b;
        return (down ? other - one : one - other) || shared(b) - shared(a) || a - b;
      });
      this.page = 0;
      this.show();
    }

    frame() {
      const id = this.place.id + "-search";
      this.search = element("input", { id, type: "search", autocomplete: "off",
        placeholder: this.hint, oninput: () => this.find() });
      this.chooser = element("select", { "aria-label": "Numbers of",
        onchange: () => {
          this.replicate = this.numbersOf[this.chooser.selectedIndex];
          this.find();
        } }, ...this.numbersOf.map((number) => element("option", {
        text: number === null ? "means over all replicates" : "replicate " + this.replicates[number],
      })));
      this.chooser.hidden = this.numbersOf.length < 2;
      this.count = element("output", { for: id, "aria-live": "polite" });
      this.head = element("thead");
      this.body = element("tbody");
      this.body.addEventListener("click", (event) => this.clicked(event));
      this.body.addEventListener("keydown", (event) => this.moved(event));
      const caption = element("caption", { text: this.caption });
      const table = element("table", { class: "problem-table" }, caption, this.head, this.body);
      this.pager = element("div", { class: "problem-pager" });
      this.place.replaceChildren(
        element("div", { class: "problem-search", role: "search" },
          element("label", { for: id, text: "Search " }), this.search, this.chooser, this.count),
        element("div", { class: "scroll", tabindex: "0", role: "region",
          "aria-label": "Problems, " + this.title }, table),
        this.pager,
      );
    }

    show() {
      const first = this.page * ROWS;
      const shown = this.found.slice(first, first + ROWS);
      this.showHead();
      this.body.replaceChildren(...shown.map((i) => this.line(i)));
      this.count.textContent = "shown " + this.found.length + " of " + this.columns.problem.length;
      this.showPager(first, shown.length);
    }

    showHead() {
      const group = this.arms.map((arm) => element("th", {
        scope: "colgroup", colspan: String(this.kinds.length), text: arm.title,
      }));
      const own = this.arms.flatMap((arm, k) => this.kinds.map((kind) =>
        this.sorter(k, kind.key, kind.name, kind.meaning + ", " + arm.title)));
      const focused = document.activeElement && document.activeElement.dataset.sort;
      this.head.replaceChildren(
        element("tr", {}, element("td", {}), ...group),
        element("tr", {}, this.sorter(null, "problem", "problem", "problem number"), ...own),
      );
      const again = focused && this.head.querySelector("[data-sort='" + focused + "']");
      if (again) again.focus();
    }

    sorter(arm, kind, name, meaning) {
      const chosen = this.sort.arm === arm && this.sort.kind === kind;
      const key = arm + "." + kind;
      const mark = chosen ? (this.sort.down ? " ▾" : " ▴") : "";
      const button = element("button", { type: "button", "data-sort": key, title: meaning,
        "aria-label": "Sort by " + meaning,
        onclick: () => {
          this.sort = { arm, kind, down: chosen ? !this.sort.down : false };
          this.order();
        } }, name, element("span", { "aria-hidden": "true", text: mark }));
      const order = chosen ? (this.sort.down ? "descending" : "ascending") : "none";
      return element("th", { scope: "col", class: kind, "aria-sort": order }, button);
    }

    line(i) {
      const problem = this.columns.problem[i];
      const link = element("a", { href: this.hash(problem), text: String(problem) });
      const id = this.ids && this.ids[problem];
      const head = element("th", { scope: "row" }, link);
      if (id !== undefined && id !== null) {
        head.append(" ", element("span", { class: "spread", text: String(id), title: String(id) }));
      }
      const cells = this.arms.flatMap((_, k) => this.kinds.map((kind) => this.cell(kind, k, i)));
      return element("tr", { "data-problem": String(problem) }, head, ...cells);
    }

    cell(kind, arm, i) {
      const value = this.value(arm, kind.key, i);
      const made = element("td", { "data-arm": String(arm), class: kind.key });
      if (kind.key === "fate") {
        if (value) made.append(...this.fate(value, arm, i));
        else made.textContent = "not known";
      } else {
        made.textContent = Number.isNaN(value) ? "–" : kind.key !== "flips" ? (100 * value).toFixed(0)
          : value.toFixed(this.replicate === null && !this.alone ? 1 : 0);
      }
      return made;
    }

    fate(value, arm, i) {
      const { name, colour } = this.fates[value - 1];
      const dot = element("span", { class: "fate-dot", "aria-hidden": "true" });
      dot.style.background = colour;
      const known = this.value(arm, "known", i);
      const share = known > 1 ? [" ", element("span", { class: "spread",
        text: this.value(arm, "same", i) + "/" + known })] : [];
      return [dot, name, ...share];
    }

    showPager(first, n) {
      const total = this.found.length;
      const turn = (text, page, possible) => element("button", { type: "button", text,
        disabled: !possible, onclick: () => { this.page = page; this.show(); } });
      const where = total ? "rows " + (first + 1) + " to " + (first + n) + " of " + total
        : "no problem fits the search";
      this.pager.replaceChildren(...(total > ROWS ? [
        turn("‹ Previous", this.page - 1, this.page > 0), element("span", { text: where }),
        turn("Next ›", this.page + 1, first + n < total),
      ] : [element("span", { text: where })]));
    }

    clicked(event) {
      const row = event.target.closest("tr");
      if (!row || event.target.closest("a")) return;
      const cell = event.target.closest("td");
      this.wantedArm = cell ? Number(cell.dataset.arm) : undefined;
      location.hash = this.hash(row.dataset.problem);
    }

    moved(event) {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const row = step && event.target.closest("tr")[step];
      if (!row) return;
      event.preventDefault();
      row.querySelector("a").focus();
    }
  }

  /* The address names a problem: open it, wherever the page was opened from. */
  async function follow() {
    const found = HASH.exec(location.hash);
    const table = found && tables[Number(found[1])];
    if (!table) {
      window.guardLifeView.close();
      return;
    }
    await table.build();
    if (!table.row.has(Number(found[2]))) return;
    window.guardLifeView.open(table, Number(found[2]), table.wantedArm);
    table.wantedArm = undefined;
  }

  function start() {
    for (const place of document.querySelectorAll(".problems[data-about]")) {
      tables.push(new ProblemTable(place));
    }
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        near.unobserve(entry.target);
        tables.find((table) => table.place === entry.target).build();
      }
    }, { rootMargin: "800px" });
    tables.forEach((table) => near.observe(table.place));
    window.addEventListener("beforeprint", () => tables.forEach((table) => table.build()));
    window.addEventListener("hashchange", follow);
    follow();
  }

  start();
})();
