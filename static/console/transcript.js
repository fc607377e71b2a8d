"use strict";
// The transcript: puts rendered events where they belong. What an event looks like was decided by the server's templates.
(() => {
  const log = document.getElementById("transcript");
  if (!log) return;
  const pill = document.getElementById("new-pill"), head = document.getElementById("session-head");
  let last = Number(log.dataset.last) || 0, unseen = 0;
  const DELTAS = new Set(["text_delta", "thinking_delta"]);

  const atEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
  const toEnd = () => { window.scrollTo(0, document.documentElement.scrollHeight); unseen = 0; pill.hidden = true; };
  pill.addEventListener("click", toEnd);
  window.addEventListener("scroll", () => { if (atEnd()) { unseen = 0; pill.hidden = true; } }, { passive: true });

  const node = (event) => {
    const template = document.createElement("template");
    // Drawn and escaped by our own server's templates; a script in it would not run under the page's policy either.
    template.innerHTML = event.html;
    return template.content.firstElementChild;
  };
  const cardOf = (call) => call && [...log.querySelectorAll('.ev[data-kind="tool_call"]')].reverse().find((card) => card.dataset.call === call);

  const place = (event) => {
    const box = node(event);
    if (event.kind === "assistant_message") {
      // The whole message replaces the words that came one by one.
      for (const old of [...log.querySelectorAll('.ev[data-kind="text_delta"]')]) old.remove();
    }
    const previous = log.lastElementChild;
    if (DELTAS.has(event.kind) && previous && previous.dataset.kind === event.kind) {
      const from = box.querySelector("[data-text]"), into = previous.querySelector("[data-text]");
      if (from && into) { into.append(...from.childNodes); previous.dataset.seq = event.seq; return; }
    }
    if (event.kind === "tool_output" || event.kind === "tool_result") {
      const card = cardOf(event.data && event.data.call_id);
      if (card) {
        const outs = card.querySelector("[data-outputs]") || card, before = outs.lastElementChild;
        if (event.kind === "tool_output" && before && before.dataset.kind === "tool_output" && before.dataset.stream === event.data.stream) {
          const from = box.querySelector("[data-text]"), into = before.querySelector("[data-text]");
          if (from && into) { into.append(...from.childNodes); into.scrollTop = into.scrollHeight; return; }
        }
        outs.append(box);
        return;
      }
    }
    log.append(box);
  };

  // -- the header follows: fetched, since the server knows the words for every state
  let asking = 0;
  const refreshHead = () => {
    clearTimeout(asking);
    asking = setTimeout(async () => {
      const answer = await fetch(log.dataset.head, { headers: { "X-Requested-With": "fetch" } });
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of ["session-head", "composer"]) {
        const fresh = page.getElementById(id), old = document.getElementById(id);
        if (!fresh || !old) continue;
        const typed = id === "composer" && old.querySelector("textarea") ? old.querySelector("textarea").value : "";
        const copy = document.importNode(fresh, true);
        old.replaceWith(copy);
        if (typed && copy.querySelector("textarea")) copy.querySelector("textarea").value = typed;
        if (window.htmx) window.htmx.process(copy);
      }
    }, 150);
  };

  // -- the interface that `stream` uses
  window.primerTranscript = {
    last: () => last,
    // Whether the event was next in line; a gap is for the caller to fill.
    add(event) {
      if (event.seq <= last) return true;
      if (event.seq > last + 1) return false;
      const follow = atEnd();
      last = event.seq;
      place(event);
      if (["session_status", "session_ended", "turn_ended", "workspace_phase"].includes(event.kind)) refreshHead();
      if (follow) toEnd();
      else {
        unseen += 1;
        pill.querySelector("span").textContent = unseen + " new";
        pill.hidden = false;
      }
      return true;
    },
    refreshHead,
  };

  // -- older events, expand, collapse, wrap
  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-older],[data-expand],[data-collapse]");
    if (!target) return;
    if (target.matches("[data-older]")) {
      event.preventDefault();
      const answer = await fetch(target.href);
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), before = document.documentElement.scrollHeight;
      target.closest(".older").replaceWith(...[...page.body.childNodes].map((child) => document.importNode(child, true)));
      window.scrollBy(0, document.documentElement.scrollHeight - before);
    } else log.querySelectorAll("details").forEach((one) => { one.open = target.matches("[data-expand]"); });
  });
  // Older events come when somebody scrolls up to them; the link does the same without.
  let scrolled = false;
  window.addEventListener("wheel", () => { scrolled = true; }, { passive: true });
  window.addEventListener("keydown", () => { scrolled = true; });
  window.addEventListener("scroll", () => {
    const older = log.querySelector("[data-older]");
    if (older && scrolled && older.getBoundingClientRect().bottom > 0 && !older.dataset.asked) { older.dataset.asked = "1"; older.click(); }
  }, { passive: true });
  const wrap = document.querySelector("[data-wrap] input");
  if (wrap) wrap.addEventListener("change", () => log.classList.toggle("nowrap", !wrap.checked));
  if (head && log.dataset.live && !location.hash) toEnd();
})();
