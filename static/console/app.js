"use strict";
// The frame: toasts, the confirmation dialog, ages of times, copying, rows of forms, unsaved changes.
(() => {
  const $ = (query, root) => (root || document).querySelector(query);
  const all = (query, root) => [...(root || document).querySelectorAll(query)];

  // -- toasts: one renderer for what htmx answers and what a full load brings
  const toast = (data) => {
    const box = document.createElement("div");
    box.className = "toast " + (data.level === "error" ? "error" : "");
    const text = document.createElement("span");
    text.textContent = [data.text, data.hint, data.request_id && "Request " + data.request_id].filter(Boolean).join(" · ");
    const close = document.createElement("button");
    close.type = "button";
    close.className = "ghost close";
    close.dataset.close = "";
    close.textContent = "Close";
    box.append(text, close);
    $("#toasts").append(box);
    if (data.level !== "error") setTimeout(() => box.remove(), 6000);
  };
  document.addEventListener("toast", (event) => toast(event.detail));
  document.addEventListener("htmx:responseError", (event) => {
    if (!event.detail.xhr.getResponseHeader("HX-Trigger")) toast({ level: "error", text: "The server answered " + event.detail.xhr.status + "." });
  });
  document.addEventListener("htmx:sendError", () => {
    const state = $("#stream-state");
    if (state) state.textContent = "The server does not answer.";
  });

  // -- relative times
  const age = (element) => {
    const seconds = (Date.now() - Date.parse(element.dateTime)) / 1000;
    const away = Math.abs(seconds);
    const text = away < 60 ? Math.floor(away) + " s" : away < 3600 ? Math.floor(away / 60) + " min" : away < 172800 ? Math.floor(away / 3600) + " h" : Math.floor(away / 86400) + " d";
    element.textContent = seconds < -1 ? "in " + text : text + " ago";
  };
  setInterval(() => { if (!document.hidden) all("time[data-age]").forEach(age); }, 5000);

  // -- a list refreshes each 30 s while somebody looks, unless they are typing in it
  setInterval(() => {
    const table = $("#table"), filters = $("form.filters");
    if (document.hidden || !table || !filters || table.contains(document.activeElement) || !window.htmx) return;
    window.htmx.ajax("GET", location.pathname + location.search, { target: "#table", swap: "outerHTML" });
  }, 30000);

  // -- the confirmation page, opened in a dialog
  let opener = null;
  const ask = async (link) => {
    const answer = await fetch(link.href, { headers: { "X-Requested-With": "dialog" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const body = $("#confirm", page);
    if (!answer.ok || !body) { location.href = link.href; return; }
    const dialog = document.createElement("dialog");
    dialog.setAttribute("aria-labelledby", "confirm-title");
    const heading = $("h1", body);
    if (heading) heading.id = "confirm-title";
    dialog.append(document.importNode(body, true));
    document.body.append(dialog);
    opener = link;
    dialog.addEventListener("close", () => { dialog.remove(); if (opener) opener.focus(); });
    dialog.showModal();
  };

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-close],[data-copy],[data-add-row],a[data-dialog],[data-cancel]");
    if (!target) return;
    if (target.matches("[data-close]")) target.closest(".toast").remove();
    else if (target.matches("[data-copy]")) {
      navigator.clipboard.writeText($("#" + target.dataset.copy).textContent).then(() => {
        const before = target.textContent;
        target.textContent = "Copied";
        setTimeout(() => { target.textContent = before; }, 1500);
      });
    } else if (target.matches("[data-add-row]")) {
      const rows = $("[data-rows]", target.parentElement), last = rows.lastElementChild, more = last.cloneNode(true);
      all("input,textarea", more).concat(more.matches("textarea") ? [more] : []).forEach((input) => { input.value = ""; input.removeAttribute("id"); });
      rows.append(more);
      (more.matches("textarea") ? more : $("input", more)).focus();
    } else if (target.matches("a[data-dialog]") && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      ask(target).catch(() => { location.href = target.href; });
    } else if (target.matches("[data-cancel]") && target.closest("dialog")) {
      event.preventDefault();
      target.closest("dialog").close();
    }
  });

  // -- menus close when the attention goes elsewhere
  document.addEventListener("click", (event) => all("details.menu[open]").forEach((menu) => { if (!menu.contains(event.target)) menu.open = false; }));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") all("details.menu[open],details.drawer[open]").forEach((menu) => { menu.open = false; $("summary", menu).focus(); });
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches("textarea[data-submit]")) event.target.form.requestSubmit();
  });

  // -- unsaved changes
  let dirty = false;
  document.addEventListener("input", (event) => { if (event.target.closest("form[data-guard]")) dirty = true; });
  document.addEventListener("submit", () => { dirty = false; });
  window.addEventListener("beforeunload", (event) => { if (dirty) event.preventDefault(); });

  // -- what only works with a script is shown only with one
  const reveal = (root) => all("[data-copy],[data-add-row],[data-close],[data-expand],[data-collapse],[data-wrap]", root).forEach((element) => { element.hidden = false; });
  reveal(document);
  document.addEventListener("htmx:load", (event) => reveal(event.target));
  const summary = $("[data-focus]");
  if (summary) summary.focus();
  // A select whose choice decides about other fields draws the form anew.
  document.addEventListener("change", (event) => {
    if (!event.target.matches("form.edit select[data-redraw]")) return;
    const again = document.createElement("input");
    again.type = "hidden"; again.name = "_redraw"; again.value = "1";
    event.target.form.append(again);
    event.target.form.requestSubmit();
  });
})();
