"use strict";
(() => {
  const FIRST = 24; // cards shown before "show all"
  const dialog = document.getElementById("enlarged");
  let current = null; // what the dialog shows: { gallery, card }

  const figure = (card, name) => (card.dataset[name] === "" ? NaN : Number(card.dataset[name]));
  const by = (name, sign) => (a, b) => {
    const x = figure(a, name), y = figure(b, name);
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || figure(a, "rank") - figure(b, "rank");
    return sign * (x - y) || figure(a, "rank") - figure(b, "rank");
  };
  const ORDERS = {
    "error": by("rank", 1),
    "error-falling": by("rank", -1),
    "mse": by("mse", 1),
    "label": by("label", 1),
    "confidence": by("confidence", -1),
  };

  function enliven(root) {
    const list = root.querySelector(".cards");
    const sort = root.querySelector("[data-sort]");
    const filter = root.querySelector("[data-filter]");
    const count = root.querySelector("[data-count]");
    const all = root.querySelector("[data-all]");
    const every = [...list.children];
    const gallery = { matching: every, expanded: false, show, focus };

    function show() {
      const wanted = filter ? filter.value : "";
      const sorted = [...every].sort(ORDERS[sort.value]);
      gallery.matching = sorted.filter((card) => wanted === "" || card.dataset.label === wanted);
      const shown = gallery.expanded ? gallery.matching : gallery.matching.slice(0, FIRST);
      const visible = new Set(shown);
      for (const card of every) card.hidden = !visible.has(card);
      list.append(...sorted);
      const rest = gallery.matching.length - shown.length;
      count.textContent = rest ? `${shown.length} of ${gallery.matching.length} cards` : `${shown.length} card${shown.length === 1 ? "" : "s"}`;
      all.hidden = rest === 0;
      all.textContent = `Show all ${gallery.matching.length}`;
      const reachable = shown.find((card) => button(card).tabIndex === 0 && card === gallery.last) || shown[0];
      for (const card of every) button(card).tabIndex = card === reachable ? 0 : -1;
    }

    function focus(card) {
      if (!card) return;
      if (card.hidden) {
        gallery.expanded = true;
        show();
      }
      for (const other of every) button(other).tabIndex = other === card ? 0 : -1;
      gallery.last = card;
      button(card).focus();
    }

    function step(card, key) {
      const shown = gallery.matching.filter((other) => !other.hidden);
      const here = shown.indexOf(card);
      const columns = Math.max(1, shown.findIndex((other) => other.offsetTop > shown[0].offsetTop));
      const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
      if (key === "Home") return shown[0];
      if (key === "End") return shown[shown.length - 1];
      return move === undefined ? null : shown[here + move] || card;
    }

    sort.addEventListener("change", show);
    if (filter) filter.addEventListener("change", show);
    all.addEventListener("click", () => {
      const next = gallery.matching[FIRST];
      gallery.expanded = true;
      show();
      focus(next);
    });
    list.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card && event.target.closest(".open")) enlarge(gallery, card);
    });
    list.addEventListener("keydown", (event) => {
      const card = event.target.closest(".card");
      const next = card && !event.ctrlKey && !event.altKey && !event.metaKey && step(card, event.key);
      if (!next) return;
      event.preventDefault();
      focus(next);
    });
    addEventListener("beforeprint", () => {
      gallery.expanded = true;
      show();
    });
    show();
  }

  const button = (card) => card.querySelector(".open");

  function enlarge(gallery, card) {
    current = { gallery, card };
    const here = gallery.matching.indexOf(card);
    document.getElementById("enlarged-title").textContent = `Target of rank ${card.dataset.rank}`;
    const copies = [...card.querySelectorAll(".picture")].map((picture) => picture.cloneNode(true));
    dialog.querySelector(".pictures").replaceChildren(...copies);
    const said = [...card.querySelectorAll(".cells, dl")].map((part) => part.cloneNode(true));
    dialog.querySelector(".caption").replaceChildren(...said);
    dialog.querySelector('[data-step="-1"]').disabled = here === 0;
    dialog.querySelector('[data-step="1"]').disabled = here === gallery.matching.length - 1;
    if (!dialog.open) dialog.showModal();
  }

  function turn(by) {
    const { gallery, card } = current;
    const next = gallery.matching[gallery.matching.indexOf(card) + by];
    if (next) enlarge(gallery, next);
  }

  dialog.addEventListener("click", (event) => {
    const pressed = event.target.closest("button");
    if (event.target === dialog || (pressed && "close" in pressed.dataset)) dialog.close();
    else if (pressed) turn(Number(pressed.dataset.step));
  });
  dialog.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) {
      event.preventDefault();
      turn(by);
    }
  });
  dialog.addEventListener("close", () => current.gallery.focus(current.card));

  document.documentElement.classList.add("js");
  document.querySelectorAll("[data-gallery]").forEach(enliven);
})();
