"use strict";
// The frame: toasts, dialogs, ages of times, copying, rows of forms, keys, unsaved changes.
(() => {
  const $ = (query, root) => (root || document).querySelector(query);
  const all = (query, root) => [...(root || document).querySelectorAll(query)];
  const held = (event) => event.ctrlKey || event.metaKey;
  const stop = (event) => event.preventDefault();
  const on = (name, work) => document.addEventListener(name, work);

  // -- toasts: one renderer for what htmx answers and what a full load brings
  const toast = ({ level, text, hint, request_id: id }) => {
    const box = $("#toast").content.firstElementChild.cloneNode(true);
    box.classList.add(level || "info");
    $("span", box).textContent = [text, hint, id && "Request " + id].filter(Boolean).join(" · ");
    $("#toasts").append(box);
    if (level !== "error") setTimeout(() => box.remove(), 6000);
  };
  on("toast", (event) => toast(event.detail));
  const ours = (xhr) => xhr.getResponseHeader("HX-Trigger");
  on("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    if (xhr.status < 502 && !ours(xhr)) toast({ level: "error", text: "The server answered " + xhr.status + "." });
  });
  // What asks by itself says when it cannot, and goes on asking.
  const stale = $("#stale");
  on("htmx:sendError", () => { stale.hidden = false; });
  on("htmx:afterOnLoad", (event) => { stale.hidden = event.detail.xhr.status < 502 || ours(event.detail.xhr); });

  // -- relative times
  const age = (element) => {
    const seconds = (Date.now() - Date.parse(element.dateTime)) / 1000;
    const away = Math.abs(seconds);
    const [size, unit] = away < 60 ? [1, " s"] : away < 3600 ? [60, " min"] : away < 172800 ? [3600, " h"] : [86400, " d"], text = Math.floor(away / size) + unit;
    element.textContent = seconds < -1 ? "in " + text : text + " ago";
  };
  setInterval(() => { if (!document.hidden) all("time[data-age]").forEach(age); }, 5000);

  // -- a list refreshes each 30 s while somebody looks and types nothing
  setInterval(() => {
    const table = $("#table"), filters = $("form.filters");
    if (document.hidden || !table || !filters || table.contains(document.activeElement)) return;
    window.htmx?.ajax("GET", location.pathname + location.search, { target: "#table", swap: "outerHTML" }).catch(() => {});
  }, 30000);

  // -- pages that open in a dialog: the question before a deletion, the palette, the list of keys
  let asking = false;
  const ask = async (url) => {
    const opener = document.activeElement;
    if (asking || $("dialog[open]")) return;
    asking = true;
    try {
      const answer = await fetch(url);
      const body = $("#confirm,#palette,#keys", new DOMParser().parseFromString(await answer.text(), "text/html"));
      if (!answer.ok || answer.redirected || !body) throw 0;
      const dialog = document.createElement("dialog"), heading = $("h1", body);
      dialog.setAttribute("aria-labelledby", (heading.id = "dialog-title"));
      dialog.append(document.importNode(body, true));
      document.body.append(dialog);
      window.htmx?.process(dialog);
      dialog.onclose = () => { dialog.remove(); opener?.focus(); };
      dialog.showModal();
    } catch { location.href = url; }
    asking = false;
  };

  const blank = (row) => all("input,textarea,select", row).forEach((input) => {
    input.value = input.options?.[0].value || "";
    if (input.dataset.blank) input.placeholder = input.dataset.blank;
  });
  // A row says its number to who hears it, and to the server.
  const count = (rows) => [...rows.children].forEach((row, at) => all("textarea,[data-row]", row).forEach((one) => {
    one.ariaLabel = one.ariaLabel.replace(/row \d+/, "row " + (at + 1));
    if (one.dataset.row) one.value = one.value.replace(/\d+$/, at);
  }));
  on("click", (event) => {
    const target = event.target.closest("[data-close],[data-copy],[data-add-row],[data-row],a[data-dialog],dialog [data-cancel]");
    if (!target || held(event)) return;
    const { dataset } = target;
    stop(event);
    if ("close" in dataset) target.closest(".toast").remove();
    else if (dataset.copy) {
      navigator.clipboard.writeText($("#" + dataset.copy).textContent).then(() => {
        const before = target.textContent;
        target.textContent = "Copied";
        setTimeout(() => { target.textContent = before; }, 1500);
      });
    } else if ("addRow" in dataset) {
      const rows = $("[data-rows]", target.parentElement), more = rows.lastElementChild.cloneNode(true);
      blank(more);
      rows.append(more);
      count(rows);
      $("input,textarea", more).focus();
    } else if (dataset.row) {
      const row = target.closest(".pair"), rows = row.parentElement, near = row.previousElementSibling, next = row.nextElementSibling || near;
      if (dataset.row === "up") near?.before(row);
      else if (next) row.remove();
      else blank(row);
      (row.isConnected ? target : $("[data-row=drop]", next)).focus();
      count(rows);
      dirty = true;
    } else if ("dialog" in dataset) ask(target.href);
    else target.closest("dialog").close();
  });

  // -- menus close when attention leaves them
  on("click", (event) => all("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; }));
  on("keydown", (event) => {
    if (event.key === "Escape") all("details.menu[open],details.drawer[open]").forEach((menu) => { menu.open = false; $("summary", menu).focus(); });
    if (event.key === "Enter" && held(event) && event.target.matches("textarea[data-submit]")) event.target.form.requestSubmit();
  });

  // -- keys: letters where nobody types, unless the account's switch is off; the elements say what they are by data-action
  const ACTIONS = { "/": "find", c: "create", f: "follow", "[": "prev-call", "]": "next-call", n: "next-hit", N: "previous-hit" };
  const act = (name) => {
    const one = $(`[data-action="${name}"]`);
    if (one?.matches("input")) one.focus();
    else if (one) (one.matches("details") ? $("summary", one) : one).click();
    return one;
  };
  const row = () => document.activeElement.closest("tbody tr");
  const step = (by) => {
    const rows = all(".table tbody tr"), at = rows.indexOf(row()), next = rows[at < 0 && by < 0 ? rows.length - 1 : at + by];
    if (next) $("a,button", next).focus();
  };
  const KEYS = {
    "?": () => ask("/account/keys/"),
    j: () => step(1),
    k: () => step(-1),
    x: () => row() && $(".bulk .pick input", row())?.click(),
    e: () => act($("#transcript details:not([open])") ? "expand" : "collapse"),
    y: () => $('.tabs a[href$="yaml/"],.tabs a[href$="as=yaml"]')?.click(),
  };
  let going = -2000;
  const inDialog = (event, found) => {
    const field = $("input[type=search]", found.parentElement), hits = all("a,button:not(:disabled)", found), at = hits.indexOf(event.target);
    if (event.key === "ArrowDown") (hits[at + 1] || field).focus();
    // A search field would keep the first one to empty itself.
    else if (event.key === "Escape") found.closest("dialog").close();
    else if (event.key === "ArrowUp") (hits[at < 0 ? hits.length - 1 : at - 1] || field).focus();
    // What was found for other words is not opened; a button is only pressed by who went to it.
    else if (event.key === "Enter" && event.target === field && found.dataset.q === field.value.trim() && $("a", found)) $("a", found).click();
    else return;
    stop(event);
  };
  on("keydown", (event) => {
    const { key, target } = event, found = $("dialog[open] #found");
    if (found) { inDialog(event, found); return; }
    if (document.body.dataset.keys === undefined) return;
    if (held(event) && key.toLowerCase() === "k") { stop(event); ask($("[data-action=palette]").href); return; }
    if (asking || event.defaultPrevented || held(event) || event.altKey || $("dialog[open]")) return;
    if (target.closest("input:not([type=checkbox]),textarea,select,[contenteditable]")) { if (key === "Escape") target.blur(); return; }
    const place = event.timeStamp - going < 1500 && $(`.side [data-go="${CSS.escape(key)}"]`);
    going = key === "g" ? event.timeStamp : -2000;
    if (place) place.click();
    else if (key in KEYS) KEYS[key]();
    else if (key in ACTIONS) act(ACTIONS[key]) || (key === "/" ? act("palette") : key === "c" && act("make"));
    else return;
    stop(event);
  });

  // -- a text file that is dropped on a text becomes the text
  on("drop", async (event) => {
    const area = event.target, file = event.dataTransfer.files[0];
    if (!file || file.size > 4e6 || !area.matches("form.edit textarea")) return;
    stop(event);
    area.value = await file.text();
    area.dispatchEvent(new Event("input", { bubbles: true }));
  });

  // -- a command line: the arrows bring back what ran before, from its first line up and its last one down
  on("keydown", (event) => {
    const area = event.target, by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by || !area.matches("[data-history]") || (by < 0 ? area.value.slice(0, area.selectionStart) : area.value.slice(area.selectionEnd)).includes("\n")) return;
    const ran = all(".run .command").map((one) => one.textContent.slice(2)), at = Number(area.dataset.at || ran.length) + by;
    if (at < 0 || at > ran.length) return;
    area.dataset.at = at;
    area.value = ran[at] || "";
    stop(event);
  });

  // -- the output of a running command is drawn anew: who reads further up in it stays there
  const read = {};
  on("htmx:beforeSwap", ({ target }) => { read[target.id] = all(".out", target).map((one) => (one.scrollHeight - one.scrollTop - one.clientHeight > 40 ? one.scrollTop : 1e9)); });
  on("htmx:load", ({ target }) => all(target.matches(".run") ? ".out" : "[hx-get] .out", target).forEach((one, at) => { one.scrollTop = read[target.id]?.[at] ?? 1e9; }));

  // -- a size with its unit says how many bytes it is
  on("input", (event) => {
    const field = event.target.closest(".is-bytes"), out = field && $("[data-bytes]", field);
    if (!out) return;
    const bytes = Number($("input", field).value) * ($("select", field).value === "GiB" ? 1024 ** 3 : 1024 ** 2);
    out.textContent = Number.isFinite(bytes) ? "= " + Math.round(bytes) + " bytes" : "";
  });

  // -- unsaved changes
  let dirty = Boolean($("form[data-guard='touched']"));
  on("input", (event) => { if (event.target.closest("form[data-guard]")) dirty = true; });
  // While the server is away a form would leave for the browser's own page of errors.
  on("submit", async (event) => {
    if (stale.hidden || event.defaultPrevented) { dirty = false; return; }
    stop(event);
    try {
      if (!(await fetch("/healthz")).ok) throw 0;
      stale.hidden = true;
      event.target.requestSubmit(event.submitter);
    } catch { toast({ level: "error", text: "The server does not answer: nothing was sent." }); }
  });
  window.onbeforeunload = (event) => { if (dirty) stop(event); };

  // -- what only works with a script is shown only with one
  const reveal = (root) => all("[data-copy],[data-close],[data-expand],[data-collapse],[data-wrap]", root).forEach((element) => { element.hidden = false; });
  reveal(document);
  on("htmx:load", (event) => reveal(event.target));
  $("[data-focus]")?.focus();
  // A select whose choice decides about other fields draws the form anew.
  on("change", (event) => {
    if (!event.target.matches("form.edit select[data-redraw]")) return;
    const { form } = event.target;
    form.append(Object.assign(document.createElement("input"), { type: "hidden", name: "_redraw", value: "1" }));
    form.requestSubmit();
  });
})();
