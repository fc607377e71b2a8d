"use strict";
// The live transcript: a socket that resumes after the last seq, and polling where there is none. The seq is all it trusts.
(() => {
  const log = document.getElementById("transcript"), transcript = window.primerTranscript;
  if (!log || !transcript || log.dataset.part !== undefined) return; // a part of the past has nothing to wait for
  const state = document.getElementById("stream-state");
  let failures = 0, socket = null, polling = 0, retry = 0, gone = false, fetching = false;
  const say = (text) => { if (state.textContent !== text) state.textContent = text; };

  const catchUp = async () => {
    if (fetching || gone) return;
    fetching = true;
    try {
      for (;;) {
        const answer = await fetch(log.dataset.poll + "?after=" + transcript.last(), { headers: { Accept: "application/json" } });
        if (answer.status === 404) { stop("This session is gone."); return; }
        if (answer.redirected || answer.status === 401 || answer.status === 403) { stop("Sign in again to follow."); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        const { items } = await answer.json();
        items.forEach((event) => transcript.add(event));
        if (polling) say("Live by polling");
        if (items.length < 200) return;
      }
    } catch (error) { say("Live updates paused, the server does not answer"); }
    finally { fetching = false; }
  };
  const stop = (text) => { gone = true; clearInterval(polling); polling = 0; clearTimeout(retry); say(text); };
  const poll = () => { if (!polling && !gone) { polling = setInterval(catchUp, 2000); catchUp(); } };

  const again = (code) => {
    if (gone) return;
    if (code === 4401) { stop("Sign in again to follow."); return; }
    if (code === 4404) { stop("This session is gone."); return; }
    failures += 1;
    if (failures >= 3) poll();
    const pause = Math.min(15, 0.5 * 2 ** Math.min(failures - 1, 5)) * (0.7 + Math.random() * 0.6);
    if (!polling) say("Live updates paused, reconnecting in " + Math.ceil(pause) + " s");
    retry = setTimeout(open, pause * 1000);
  };
  const open = () => {
    if (gone) return;
    const url = location.origin.replace(/^http/, "ws") + log.dataset.socket + "?after=" + transcript.last();
    try { socket = new WebSocket(url, "primer.v1.html"); } catch (error) { again(0); return; }
    socket.addEventListener("open", () => { failures = 0; clearInterval(polling); polling = 0; say("Live"); transcript.refreshHead(); });
    socket.addEventListener("message", (message) => {
      // A gap means that something was lost on the way: the store has it.
      if (!transcript.add(JSON.parse(message.data))) catchUp();
    });
    socket.addEventListener("close", (event) => again(event.code));
  };
  window.addEventListener("pagehide", () => { gone = true; if (socket) socket.close(); });
  open();
})();
