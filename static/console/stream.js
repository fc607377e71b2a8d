"use strict";
// The live transcript: a socket that resumes after the last seq, and polling where there is none. The seq is all it trusts.
(() => {
  const byId = (id) => document.getElementById(id), log = byId("transcript"), transcript = window.primerTranscript;
  if (!log || !transcript || log.dataset.part !== undefined) return; // a part of the past has nothing to wait for
  const state = byId("stream-state"), stale = byId("stale");
  let failures = 0, socket = null, polling = 0, retry = 0, gone = false, fetching = false;
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };

  const catchUp = async () => {
    if (fetching || gone) return;
    fetching = true;
    try {
      for (;;) {
        const answer = await fetch(log.dataset.poll + "?after=" + transcript.last(), { headers: { Accept: "application/json" } });
        if (over(answer.status === 404 ? 4404 : answer.redirected || [401, 403].includes(answer.status) ? 4401 : 0)) return;
        if (!answer.ok) throw 0;
        const { items } = await answer.json();
        items.forEach((event) => transcript.add(event));
        if (polling) { stale.hidden = true; say("Live by polling"); }
        if (items.length < 200) return;
      }
    } catch { say("Live updates paused, the server does not answer"); }
    finally { fetching = false; }
  };
  const stop = (text) => { gone = stale.hidden = true; clearInterval(polling); polling = 0; clearTimeout(retry); say(text); };
  const over = (code) => {
    const text = { 4401: "Sign in again to follow.", 4404: "This session is gone." }[code];
    if (text) stop(text);
    return text;
  };
  const poll = () => { if (!polling && !gone) { polling = setInterval(catchUp, 2000); catchUp(); } };

  const again = (code) => {
    if (gone || over(code)) return;
    stale.hidden = false;
    failures += 1;
    if (failures >= 3) poll();
    const pause = Math.min(15, 0.5 * 2 ** Math.min(failures - 1, 5)) * (0.7 + Math.random() * 0.6);
    if (!polling) say("Live updates paused, reconnecting in " + Math.ceil(pause) + " s");
    retry = setTimeout(open, pause * 1000);
  };
  const open = () => {
    if (gone) return;
    const url = location.origin.replace(/^http/, "ws") + log.dataset.socket + "?after=" + transcript.last();
    try { socket = new WebSocket(url, "primer.v1.html"); } catch { again(0); return; }
    socket.onopen = () => { failures = 0; stale.hidden = true; clearInterval(polling); polling = 0; say("Live"); transcript.refreshHead(); };
    socket.onmessage = (message) => {
      // A gap means that something was lost on the way: the store has it.
      if (!transcript.add(JSON.parse(message.data))) catchUp();
    };
    socket.onclose = (event) => again(event.code);
  };
  window.onpagehide = () => { gone = true; if (socket) socket.close(); };
  open();
})();
