"use strict";
// The transcript: puts rendered events where they belong. What an event looks like was decided by the server's templates.
(() => {
  const $ = (query, root) => root.querySelector(query), all = (query, root) => [...root.querySelectorAll(query)];
  const byId = (id) => document.getElementById(id), log = byId("transcript");
  if (!log) return;
  const pill = byId("new-pill"), head = byId("session-head");
  const kinds = log.dataset.kinds && log.dataset.kinds.split(" "), hits = (log.dataset.hits || "").split(",").filter(Boolean).map(Number);
  const sought = (log.dataset.find || "").toLowerCase();
  let last = Number(log.dataset.last) || 0, unseen = 0, at = Number(log.dataset.at) || 0;

  const height = () => document.documentElement.scrollHeight;
  const atEnd = () => innerHeight + scrollY >= height() - 80;
  const toEnd = () => {
    // Twice: what comes into view may be higher than it was taken for.
    const go = () => scrollTo(0, height());
    go(); requestAnimationFrame(go); unseen = 0; pill.hidden = true;
  };
  pill.onclick = toEnd;

  // Code in a message gets a button that copies it.
  let codes = 0;
  const dress = (root) => all(".markdown pre:not([id])", root).forEach((pre) => {
    const button = document.createElement("button");
    pre.id = "code-" + (codes += 1);
    Object.assign(button, { type: "button", className: "small", textContent: "Copy" }).dataset.copy = pre.id;
    pre.after(button);
  });

  const node = (event) => {
    const template = document.createElement("template");
    // Drawn and escaped by our own server's templates; a script in it would not run under the page's policy either.
    template.innerHTML = event.html;
    return template.content.firstElementChild;
  };
  const cardOf = (call) => call && all(".ev-tool_call", log).findLast((card) => card.dataset.call === call);

  // Whether the text of a box could be put behind that of another; who reads further up in that one stays there.
  const join = (box, other) => {
    const from = $("[data-text]", box), into = $("[data-text]", other);
    if (!from || !into) return false;
    const low = into.scrollTop + into.clientHeight > into.scrollHeight - 40;
    into.append(...from.childNodes);
    if (low) into.scrollTop = into.scrollHeight;
    return true;
  };

  const place = (event) => {
    const box = node(event);
    if (kinds && !kinds.includes(event.kind)) box.hidden = true;
    dress(box);
    if (event.kind === "assistant_message") {
      // The whole message replaces the words that came one by one.
      all(".ev-text_delta", log).forEach((old) => old.remove());
    }
    const previous = log.lastElementChild;
    if (event.kind.endsWith("_delta") && previous?.dataset.kind === event.kind) {
      const told = $("summary", box);
      if (told) $("summary", previous).textContent = told.textContent;
      if (join(box, previous)) { previous.dataset.seq = event.seq; return; }
    }
    if (event.kind === "tool_output" || event.kind === "tool_result") {
      const card = cardOf(event.data?.call_id);
      if (card) {
        const outs = $("[data-outputs]", card) || card, before = outs.lastElementChild;
        if (event.kind === "tool_output" && before?.dataset.kind === "tool_output" && before.dataset.stream === event.data.stream && join(box, before)) return;
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
      const answer = await fetch(log.dataset.head).catch(() => 0);
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of ["session-head", "composer"]) {
        const fresh = page.getElementById(id), old = byId(id);
        if (!fresh || !old) continue;
        const typed = $("textarea", old), field = $("textarea", fresh);
        // Who has a menu open, or stands on a button, keeps that.
        const stops = (root) => all("a,button,summary,textarea", root), at = stops(old).indexOf(document.activeElement);
        const menu = $("details", fresh);
        if (menu && $("details[open]", old)) menu.open = true;
        old.replaceWith(fresh);
        if (at >= 0 && stops(fresh)[at]) stops(fresh)[at].focus();
        if (typed && field) field.value = typed.value;
        window.htmx?.process(fresh);
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
        $("span", pill).textContent = unseen + " new";
        pill.hidden = false;
      }
      return true;
    },
    refreshHead,
  };

  // -- older events, expand, collapse, calls, what was found
  const call = (by) => {
    const cards = all(".ev-tool_call", log), top = (one) => one.getBoundingClientRect().top;
    const card = by > 0 ? cards.find((one) => top(one) > 72) : cards.findLast((one) => top(one) < 48);
    if (!card) return;
    card.scrollIntoView();
    $("a,[tabindex]", card).focus({ preventScroll: true });
  };
  const hit = (by, link) => {
    at = (by > 0 ? hits.find((seq) => seq > at) : hits.findLast((seq) => seq < at)) || hits.at(by > 0 ? 0 : -1);
    const box = byId("e" + at), to = new URL(link.href);
    if (!box) { to.searchParams.set("at", at); to.hash = "e" + at; location.assign(to); return; }
    location.hash = box.id;
    box.scrollIntoView({ block: "center" });
    $("[data-place]", document).textContent = (hits.indexOf(at) + 1) + " of " + hits.length + " events";
  };
  const mark = () => {
    const found = [], walk = document.createTreeWalker(log, NodeFilter.SHOW_TEXT), size = sought.length;
    if (!size || !window.Highlight) return;
    for (let text; (text = walk.nextNode());) {
      for (let from = 0; (from = text.data.toLowerCase().indexOf(sought, from)) >= 0; from += size) {
        found.push(new StaticRange({ startContainer: text, startOffset: from, endContainer: text, endOffset: from + size }));
      }
    }
    CSS.highlights.set("find", new Highlight(...found.slice(0, 5000)));
  };

  document.addEventListener("click", async (event) => {
    const target = event.target.closest("[data-older],[data-expand],[data-collapse],[data-step],[data-hit],[data-action=follow]");
    if (!target) return;
    if (target.matches("[data-older]")) {
      event.preventDefault();
      const answer = await fetch(target.dataset.older);
      if (!answer.ok) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), before = height();
      dress(page.body);
      target.closest(".older").replaceWith(...page.body.childNodes);
      scrollBy(0, height() - before);
      mark();
    } else if (target.dataset.step) call(Number(target.dataset.step));
    else if (target.dataset.hit) { event.preventDefault(); hit(Number(target.dataset.hit), target); }
    else if (target.matches("a")) { if (log.dataset.part === undefined) { event.preventDefault(); toEnd(); } }
    else all("details", log).forEach((one) => { one.open = target.matches("[data-expand]"); });
  });
  // Older events come when somebody scrolls up to them; the link does the same without.
  let scrolled = false;
  window.onwheel = window.onkeydown = () => { scrolled = true; };
  window.onscroll = () => {
    if (atEnd()) { unseen = 0; pill.hidden = true; }
    const older = $("[data-older]", log);
    if (older && scrolled && older.getBoundingClientRect().bottom > 0 && !older.dataset.asked) { older.dataset.asked = "1"; older.click(); }
  };
  const tools = $(".transcript-tools", document), kind = $("select", tools);
  kind.onchange = () => kind.form.requestSubmit();
  all("[hidden]", tools).forEach((one) => { one.hidden = false; });

  // -- seconds that pass: a run, a command, the wait before another attempt
  setInterval(() => all("[data-since]", document).forEach((one) => {
    const spent = Math.floor((Date.now() - Date.parse(one.dataset.since)) / 1000), card = one.closest(".ev-tool_call");
    const { retry } = one.dataset, over = retry ? spent >= retry : card && (!log.dataset.live || $(".result", card));
    one.textContent = over ? "" : retry ? "Again in " + Math.ceil(retry - spent) + " s." : (spent < 60 ? "" : Math.floor(spent / 60) + " min ") + (spent % 60) + " s";
  }), 1000);

  dress(log);
  mark();
  if (at && !location.hash) location.hash = "e" + at;
  // An event that is in no part of the page: the server shows it among its neighbours.
  if (/^#e\d+$/.test(location.hash) && !location.search && !byId(location.hash.slice(1))) location.replace("?at=" + location.hash.slice(2) + location.hash);
  if (head && log.dataset.live && !location.hash && !sought) toEnd();
})();
